"""How often the findings of `charact run` name the fault of a program whose fault is known.

Run `python benchmarks/findings.py FOLDER [--only NAME ...] [--busy] [--times N]`. FOLDER holds programs and their
`truth.toml`: `tests/programs/known_causes`, `benchmarks/reported_causes`, or `tests/programs/well_written`, which needs
no truth, as none of its programs has a fault. Each program runs N times under `charact run`, and up to 3 times without
it, with and without its remedy in alternation. Programs print the time of their loop; the peak memory is that of all
their processes.

A finding is acceptable if its identifier is in the truth's `findings`. Its place is right if its line contains a text
of `lines`, or, unless the finding is a line, its layer, setting or phase is one of `layers`, `settings` or `phases`.
Its remedy is right if it contains a text of `remedy`. Its range is right if `recoverable_s` holds the time that the
remedy saved, within a factor of 1.5 or 5 % of the loop's time; the ranges of findings about memory are not judged.

right:  an acceptable finding is among the first three, and its place, remedy and range are right
partly: an acceptable finding is reported, but later, or with another place, remedy or range
wrong:  no acceptable finding is reported, and the first finding has another cause with high or medium confidence
silent: no acceptable finding is reported, nor another cause: what limits the program (compute, bandwidth, host, other
        programs) is none

A program without a fault is right if no finding, other than `allowed` and what limits it, promises more than 3 % of its
time; partly if one with low confidence does, or only its upper end; wrong if one with high or medium confidence does.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

FIRST = 3
FACTOR = 1.5
SLACK_FRAC = 0.05
WORTH_FRAC = 0.03
MOST_TURNS = 3
LIMITS = frozenset({"compute", "bandwidth", "host", "contention"})
VERDICTS = "right", "partly", "wrong", "silent", "failed"
HELPERS = frozenset({"marks"})
"""Modules of a folder that are no programs."""


@dataclass
class Truth:
    """A program's fault, and the texts by which findings name it."""

    findings: Sequence[str] = ()
    allowed: Sequence[str] = ()
    lines: Sequence[str] = ()
    layers: Sequence[str] = ()
    settings: Sequence[str] = ()
    phases: Sequence[str] = ()
    remedy: Sequence[str] = ()
    environment: Mapping[str, str] | None = None
    saves: str = "time"
    holds: str = ""
    saves_frac: float | None = None
    saves_mib: float | None = None
    report: str = ""


@dataclass
class Saved:
    """Time of a program's loop, and what its remedy saved of it and of the peak memory."""

    loop_s: float
    saved_s: float
    memory_mib: float


def main() -> None:
    """Judge the findings of each program, and print a row for each and a total."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="programs to run")
    parser.add_argument("--busy", action="store_true", help="keep two cores busy with other work")
    parser.add_argument("--times", type=int, default=1, metavar="N", help="runs of each program under charact")
    options = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    truths = read_truths(options.folder)
    if unknown := set(options.only or ()) - truths.keys():
        parser.error(f"not in {options.folder}: {', '.join(sorted(unknown))}")
    totals: Counter[str] = Counter()
    with busy_cores(2 if options.busy else 0):
        for name in options.only or sorted(truths):
            path, truth = options.folder / f"{name}.py", truths[name]
            saved = saved_by_remedy(path, truth, min(options.times, MOST_TURNS))
            for _ in range(options.times):
                findings = watched_findings(path)
                verdict, reason = ("failed", "") if findings is None else judged(path, truth, findings, saved)
                totals[verdict] += 1
                print(row(name, verdict, reason, findings or [], saved), flush=True)
    print(", ".join(f"{verdict} {totals[verdict]}" for verdict in VERDICTS), "of", totals.total())


def read_truths(folder: Path) -> dict[str, Truth]:
    """Return the truth of each program of a folder; a folder without `truth.toml` has no faults."""
    names = sorted({path.stem for path in folder.glob("*.py")} - HELPERS)
    stored = folder / "truth.toml"
    entries = tomllib.loads(stored.read_text()) if stored.exists() else {name: {} for name in names}
    if set(names) != entries.keys():
        raise SystemExit(f"error: {stored} does not have the programs of its folder: {set(names) ^ entries.keys()}")
    return {name: Truth(**entries[name]) for name in names}


@contextmanager
def busy_cores(num_cores: int) -> Iterator[None]:
    """Keep cores busy with endless loops."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(num_cores)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def watched_findings(path: Path) -> list[dict[str, Any]] | None:
    """Return the findings of a run under `charact run`, best first, or None if the run or its summary failed."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as runs:  # views may still be written
        command = [sys.executable, "-m", "charact"]
        watched = subprocess.run([*command, "run", "--quiet", "--out", runs, str(path)], capture_output=True, text=True,
                                 check=False)
        shown = subprocess.run([*command, "show", "--json", runs], capture_output=True, text=True, check=False)
    if shown.returncode:
        print(watched.stderr.strip(), shown.stderr.strip(), sep="\n", file=sys.stderr)
        return None
    summary = json.loads(shown.stdout)
    if "findings" not in summary:
        raise SystemExit("error: `charact show --json` has no key `findings`")
    findings: list[dict[str, Any]] = summary["findings"]
    return findings


def saved_by_remedy(path: Path, truth: Truth, num_times: int) -> Saved | None:
    """Run a program with and without its remedy, and return the differences of the medians; None without a remedy."""
    if not truth.environment:
        return None
    faulty, remedied = [], []
    for _ in range(num_times):
        faulty.append(loop_and_memory(path, {}))
        remedied.append(loop_and_memory(path, truth.environment))
    (loop_s, memory), (remedied_s, remedied_memory) = (
        [statistics.median(values) for values in zip(*runs, strict=True)] for runs in (faulty, remedied))
    return Saved(loop_s, loop_s - remedied_s, (memory - remedied_memory) / 2**20)


def loop_and_memory(path: Path, environment: Mapping[str, str]) -> tuple[float, int]:
    """Run a program, and return its loop's time in seconds and the peak memory of its processes in bytes."""
    with tempfile.TemporaryFile("w+") as output:
        program = subprocess.Popen([sys.executable, str(path)], env=os.environ | environment, stdout=output)
        peak_bytes = 0
        while program.poll() is None:
            peak_bytes = max(peak_bytes, memory_of(program.pid))
            time.sleep(0.1)
        output.seek(0)
        loop = re.search(r"^loop: ([\d.]+) s", output.read(), re.MULTILINE)
    if program.returncode or not loop:
        raise SystemExit(f"error: {path} failed with status {program.returncode}")
    return float(loop[1]), peak_bytes


def memory_of(pid: int) -> int:
    """Return the memory of a process and its children in bytes; shared pages count once (proportional set size)."""
    total = 0
    try:
        process = psutil.Process(pid)
        for member in (process, *process.children(recursive=True)):
            total += member.memory_full_info().pss
    except psutil.Error:  # a process has just ended
        pass
    return total


def judged(path: Path, truth: Truth, findings: Sequence[Mapping[str, Any]], saved: Saved | None) -> tuple[str, str]:
    """Return the verdict on a run's findings, and its reason."""
    if not truth.findings:
        return judged_without_fault(truth, findings)
    positions = [position for position, finding in enumerate(findings) if finding["finding"] in truth.findings]
    if not positions:
        first = next((finding for finding in findings if finding["finding"] not in LIMITS), None)
        if first and first["confidence"] in ("high", "medium"):
            return "wrong", f"{first['finding']} instead of {' or '.join(truth.findings)}"
        return "silent", "no cause"
    faults = [(mistakes(path, truth, findings[position], saved) + ([] if position < FIRST else ["rank"]), position)
              for position in positions]
    fewest, position = min(faults, key=lambda fault: len(fault[0]))
    label = f"{findings[position]['finding']} at {position + 1}"
    return ("partly", f"{label}, not {', '.join(fewest)}") if fewest else ("right", label)


def judged_without_fault(truth: Truth, findings: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Return the verdict on the findings of a program without a fault, and its reason."""
    verdict, reason = "right", "no cause"
    for finding in findings:
        low, high = finding.get("recoverable_frac") or (0, 0)
        if finding["finding"] in LIMITS.union(truth.allowed) or high <= WORTH_FRAC:
            continue
        if low > WORTH_FRAC and finding["confidence"] != "low":
            return "wrong", finding["finding"]
        verdict, reason = "partly", finding["finding"]
    return verdict, reason


def mistakes(path: Path, truth: Truth, finding: Mapping[str, Any], saved: Saved | None) -> list[str]:
    """Return which of place, remedy and range an acceptable finding has wrong."""
    wrong = []
    if not place_is_right(path, truth, finding):
        wrong.append("place")
    remedy = (finding.get("remedy") or "").lower()
    if not any(text.lower() in remedy for text in truth.remedy):
        wrong.append("remedy")
    if truth.saves == "time" and saved and not holds(finding.get("recoverable_s"), saved):
        wrong.append("range")
    return wrong


def place_is_right(path: Path, truth: Truth, finding: Mapping[str, Any]) -> bool:
    """Return whether a finding's line, layer, setting or phase is one of the truth's."""
    line, layer, setting = finding.get("line"), finding.get("layer") or "", finding.get("setting") or ""
    if line and finding.get("file") and Path(finding["file"]).name == path.name:
        source = path.read_text().splitlines()
        if line <= len(source) and any(text in source[int(line) - 1] for text in truth.lines):
            return True
    if finding["finding"] == "line":
        return False
    if any(text in layer.split(".") or layer.startswith(text) for text in truth.layers):
        return True
    return any(text in setting for text in truth.settings) or finding.get("phase") in truth.phases


def holds(recoverable_s: Sequence[float] | None, saved: Saved) -> bool:
    """Return whether a range of times holds the saved time, within a factor or a share of the loop's time."""
    if not recoverable_s:
        return False
    low, high = recoverable_s
    slack_s = SLACK_FRAC * saved.loop_s
    return min(low / FACTOR, low - slack_s) <= saved.saved_s <= max(high * FACTOR, high + slack_s)


def row(name: str, verdict: str, reason: str, findings: Sequence[Mapping[str, Any]], saved: Saved | None) -> str:
    """Return a program's row: verdict, reason, what its remedy saved, and the first findings with their ranges."""
    texts = []
    for finding in findings[:FIRST]:
        low, high = finding.get("recoverable_s") or (0, 0)
        texts.append(f"{finding['finding']} ({finding['confidence']}, {low:.1f} to {high:.1f} s)")
    gain = f"{saved.saved_s:5.1f} of {saved.loop_s:4.1f} s {saved.memory_mib:5.0f} MiB" if saved else " " * 25
    return f"{name:24} {verdict:6} {gain}  {reason}  [{'; '.join(texts)}]"


if __name__ == "__main__":
    main()
