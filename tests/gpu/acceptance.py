#!/usr/bin/env python3
"""Does charact report the truth on this device? One line a check: status, name, value, limit.

Run it in a checkout, with a PyTorch that sees the GPU. charact need not be installed, only what it depends on. All that
is written, ceilings included unless XDG_CACHE_HOME is set, is below --out:

    python tests/gpu/acceptance.py --out /tmp/acceptance   # some 6 minutes; it begins no check after --budget
    python tests/gpu/acceptance.py --only phases,import    # some checks
    python tests/gpu/acceptance.py --device cpu            # the checks that need no GPU; times are shown, not held

Each check is code of its own against charact's commands or Python API: events around whole blocks, traces that are read
here, PyTorch's allocator, NVML, kernels of known occupancy, CUDA graphs. PASS and FAIL are within and outside of the
limit, ERROR is a check that broke, N/A one that needs what is not here, INFO a value without limit. The lines are also
in `lines.tsv`, the output of programs in `programs.log`. Exit status: number of FAIL and ERROR, at most 100.
"""

import argparse
import importlib
import importlib.metadata
import os
import sys
import time
import tomllib
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

if TYPE_CHECKING:
    from gpu.checks.session import Check, Session

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Run the checks that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("/tmp/charact-acceptance"))
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--only", default="", help="names of checks")
    parser.add_argument("--budget", type=float, default=470.0, help="seconds after which no further check begins")
    options = parser.parse_args()
    if missing := missing_packages():
        print(f"error: these packages are missing or too old: {', '.join(missing)}; install them, or put them on "
              "PYTHONPATH", file=sys.stderr)
        return 2
    out = options.out.resolve()
    import_from_checkout(out)
    importlib.import_module("charact.measure")  # before torch, which it silences
    import torch
    from gpu.checks import CHECKS
    from gpu.checks.session import Session

    chosen = [name for name in options.only.split(",") if name] or list(CHECKS)
    if unknown := set(chosen) - set(CHECKS):
        print(f"error: no such checks: {', '.join(sorted(unknown))}; there are {', '.join(CHECKS)}", file=sys.stderr)
        return 2
    if options.device == "cuda" and not torch.cuda.is_available():
        print("error: PyTorch sees no CUDA device: --device cpu runs the checks that need none", file=sys.stderr)
        return 2
    (out / "lines.tsv").unlink(missing_ok=True)
    session = Session(out, torch.device("cuda", 0) if options.device == "cuda" else torch.device("cpu"))
    return run_checks(session, {name: CHECKS[name] for name in chosen}, options.budget)


def run_checks(session: "Session", checks: Mapping[str, "Check"], budget_s: float) -> int:
    """Run checks one after the other; return the number of those that failed or broke, at most 100."""
    from gpu.checks.session import NotHereError

    begun = time.monotonic()
    for name, check in checks.items():
        if time.monotonic() - begun > budget_s:
            session.line("N/A", name, f"no time left of {budget_s:.0f} s")
            continue
        check_begun = time.monotonic()
        try:
            check(session)
        except NotHereError as reason:
            session.line("N/A", name, reason)
        except Exception as error:
            session.line("ERROR", name, f"{type(error).__name__}: {str(error).strip()[:200]}")
            session.log(traceback.format_exc())
        session.info(f"seconds of {name}", f"{time.monotonic() - check_begun:.1f}")
    statuses = [line.partition("\t")[0] for line in session.lines]
    print(", ".join(f"{statuses.count(status)} {status}" for status in ("PASS", "FAIL", "ERROR", "N/A")),
          f"in {time.monotonic() - begun:.0f} s")
    wrong = [line for line in session.lines if line.startswith(("FAIL", "ERROR"))]
    print(*wrong, sep="\n")
    return min(100, len(wrong))


def missing_packages() -> list[str]:
    """Return what charact depends on and is not here: a name, or a name with the versions that would do."""
    return [str(one) for one in map(Requirement, _project()["dependencies"]) if not _is_met(one)]


def _is_met(requirement: Requirement) -> bool:
    try:
        return requirement.specifier.contains(importlib.metadata.version(requirement.name), prereleases=True)
    except importlib.metadata.PackageNotFoundError:
        return False


def import_from_checkout(out: Path) -> None:
    """Let this process and its children import the checkout as if it were installed: by links, with metadata.

    In a checkout the workloads are next to the package, and the package looks for them below it.
    """
    package = out / "site" / "charact"
    package.mkdir(parents=True, exist_ok=True)
    for child in [*(ROOT / "charact").iterdir(), ROOT / "workloads"]:
        if child.name != "__pycache__" and not (package / child.name).is_symlink():
            (package / child.name).symlink_to(child)
    version = _project()["version"]
    metadata = out / "site" / f"charact-{version}.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: charact\nVersion: {version}\n", encoding="utf-8")
    paths = [str(out / "site"), str(ROOT / "tests")]
    sys.path[:0] = paths
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*paths, os.environ.get("PYTHONPATH")]))
    os.environ.setdefault("XDG_CACHE_HOME", str(out / "cache"))


def _project() -> dict[str, list[str]]:
    table: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


if __name__ == "__main__":
    sys.exit(main())
