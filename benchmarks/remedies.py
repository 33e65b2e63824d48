"""How often `charact try` recommends the right remedy, and whether its interval holds what the program's own gives.

Run `python benchmarks/remedies.py [--minutes M] [NAME ...]`. The programs of `tests/programs/known_causes` with a
remedy that charact can apply have it themselves, too, switched on by REMEDY=1: their mean iterations with and without
it are measured by turns. Programs of `tests/programs/well_written`, by name, have no fault: nothing should be
recommended.

right:  what is recommended has the expected remedy, and its interval, 5 points wider on each side, holds the saving
range:  it has, but the interval does not hold it
silent: nothing is recommended
wrong:  something else is recommended
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import Any

from charact.analysis.profile.case_summary import iteration_times
from charact.record.reader import load_run

ROOT = Path(__file__).parents[1]
EXPECTED = {
    "adam_denormal": {"fused=True", "set_flush_denormal(True)"}, "adam_many_tensors": {"fused=True"},
    "too_many_threads": {"set_num_threads"}, "workers_every_epoch": {"workers"}, "workers_for_tensors": {"workers"},
}  # fmt: skip
"""Programs, each with texts of which the recommended remedy contains one."""
SLACK_FRAC = 0.05
NUM_TURNS = 4


def main() -> None:
    """Try remedies on each program, and print a row for each and a total."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="programs; default: those with a remedy")
    parser.add_argument("--minutes", type=float, default=5.0, help="limit of charact try")
    options = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    totals: Counter[str] = Counter()
    for name in options.names or EXPECTED:
        has_fault = name in EXPECTED
        path = ROOT / "tests" / "programs" / ("known_causes" if has_fault else "well_written") / f"{name}.py"
        proven, num_trials = recommended(path, options.minutes)
        saved_frac = saving(path) if has_fault else 0.0
        verdict = judged(EXPECTED.get(name, set()), proven, saved_frac)
        totals[verdict] += 1
        what = "nothing" if proven is None else (
            f"{proven['remedy']} {100 * proven['saves_frac']:.1f} % ({100 * proven['low_frac']:.1f} to "
            f"{100 * proven['high_frac']:.1f})")
        print(f"{name:24} {verdict:7} {what}; its own remedy saves {100 * saved_frac:.1f} %; {num_trials} trials",
              flush=True)
    print(", ".join(f"{verdict} {number}" for verdict, number in totals.items()), "of", totals.total())


def recommended(path: Path, minutes: float) -> tuple[dict[str, Any] | None, int]:
    """Return the recommended remedy as a row of the result, None if there is none, and the number of trials."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as runs:
        command = [sys.executable, "-m", "charact", "try", "--json", "--max-minutes", f"{minutes:g}", "--out", runs]
        done = subprocess.run([*command, str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"error: charact try {path}: {done.stderr.strip()}")
    result = json.loads(done.stdout)
    proven = next((each for each in result["remedies"] if each["state"] == "proven"), None)
    return proven, result["num_trials"]


def saving(path: Path) -> float:
    """Return the share of the mean iteration that the program's own remedy saves, measured by turns."""
    times: dict[str, list[float]] = {"": [], "1": []}
    for turn in range(NUM_TURNS):
        for remedy in ("", "1") if turn % 2 == 0 else ("1", ""):
            times[remedy].append(mean_iteration_s(path, remedy))
    return 1 - fmean(times["1"]) / fmean(times[""])


def mean_iteration_s(path: Path, remedy: str) -> float:
    """Return the mean time (s) of the iterations of the longest case of a program, with and without its remedy."""
    environment = {name: value for name, value in os.environ.items() if name != "REMEDY"}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as runs:
        command = [sys.executable, "-m", "charact", "run", "--quiet", "--passes", "timing", "--out", runs, str(path)]
        subprocess.run(command, env=environment | ({"REMEDY": remedy} if remedy else {}), capture_output=True,
                       check=True)
        (run,) = (load_run(each) for each in Path(runs).iterdir() if (each / "run.json").is_file())
        walls = iteration_times(run).groupby("case")["wall_s"]
        return float(walls.mean()[str(walls.sum().idxmax())])


def judged(expected: set[str], proven: dict[str, Any] | None, saved_frac: float) -> str:
    """Return the verdict on what is recommended."""
    if proven is None:
        return "silent" if expected else "right"
    if not any(text in proven["remedy"] for text in expected):
        return "wrong"
    within = proven["low_frac"] - SLACK_FRAC <= saved_frac <= proven["high_frac"] + SLACK_FRAC
    return "right" if within else "range"


if __name__ == "__main__":
    main()
