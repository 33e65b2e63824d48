"""Running a script bare and under `charact run`, each in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from charact import Run, load_run

OURS = ("Wrote ", "error: ", "charact: ")
"""How the lines begin that charact adds to a program's standard error with --quiet."""


class Ended(NamedTuple):
    """How a program ended, and what it printed; charact's own lines are apart."""

    status: int
    output: str
    error: str
    ours: list[str]


def run_bare(arguments: Sequence[str], cwd: Path, **options: Any) -> Ended:
    """Run a program as Python does."""
    return _ended([sys.executable, *arguments], cwd, options)


def run_watched(arguments: Sequence[str], cwd: Path, **options: Any) -> Ended:
    """Run a program under `charact run`; options of charact's own may come first."""
    return _ended([sys.executable, "-m", "charact", "run", "--quiet", *arguments], cwd, options)


def only_record(cwd: Path) -> Run:
    """The one run that was written."""
    (path,) = (cwd / "runs").iterdir()
    return load_run(path)


def num_iterations(run: Run, mode: str = "train") -> int:
    """Number of iterations of the case of a mode that were counted."""
    (case,) = (entry["case"] for entry in run.manifest["cases"] if entry["mode"] == mode)
    return int(run.passes(case)["timing"]["num_iterations"])


def _ended(command: list[str], cwd: Path, options: dict[str, Any]) -> Ended:
    quick = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False,
                          **{"env": os.environ | quick, "timeout": 100, **options})
    lines = done.stderr.splitlines(keepends=True)
    ours = [line.strip() for line in lines if line.startswith(OURS)]
    return Ended(done.returncode, done.stdout, "".join(line for line in lines if not line.startswith(OURS)), ours)
