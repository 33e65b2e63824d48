"""How often verdicts are false on a busy machine, by the share of processor time that other programs took.

Run `python benchmarks/busy_machine.py [--repeats 3]` on a machine that does nothing else. Each workload is profiled
while processes keep some of the cores busy for some of the time. A verdict is false if it differs from the most
frequent one of the runs without load. `core_use.UNRELIABLE_FRAC`, from which charact withholds verdicts, was chosen
from this table.
"""

import argparse
import contextlib
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from charact.analysis.efficiency import bottleneck as verdicts
from charact.analysis.profile.case_summary import case_summary
from charact.analysis.profile.core_use import core_use
from charact.record.reader import load_run

CASES = {
    "mlp infer": ["mlp", "--mode", "infer", "--input-sizes", "32"],
    "mlp train": ["mlp", "--mode", "train", "--input-sizes", "32"],
    "resnet18 infer": ["resnet18", "--mode", "infer", "--input-sizes", "64", "--batch-sizes", "8"],
    "rnn_lm train": ["rnn_lm", "--mode", "train", "--input-sizes", "10"],
}
LOADS = [(0, 1.0), (1, 0.05), (1, 0.1), (1, 0.2), (1, 0.4), (1, 1.0), (2, 0.1), (2, 0.3), (2, 1.0)]
"""Numbers of processes, and the share of the time in which each computes."""
_PERIOD_S = 0.05


def _keep_busy(busy_frac: float) -> None:
    while True:
        ended = time.perf_counter() + busy_frac * _PERIOD_S
        while time.perf_counter() < ended:
            pass
        time.sleep((1 - busy_frac) * _PERIOD_S)


@contextlib.contextmanager
def load(number: int, busy_frac: float) -> Iterator[None]:
    """Run processes that compute for a share of the time."""
    processes = [multiprocessing.Process(target=_keep_busy, args=[busy_frac], daemon=True) for _ in range(number)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()


def profiled(arguments: list[str], out: Path) -> dict[str, object]:
    """Profile a workload in a process of its own; return its verdict, even an unreliable one, and the use of cores."""
    command = [sys.executable, "-m", "charact", "profile", *arguments, "--max-seconds", "4", "--out", str(out), "-q"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    run = load_run(Path(text.split()[-1]))
    vars(verdicts)["disturbance"] = lambda run, case: None  # gives the verdict that would be withheld
    found, uses = verdicts.bottlenecks(run).iloc[0], core_use(run)
    use = uses.iloc[0] if len(uses) else dict.fromkeys(uses)
    return {"verdict": found["verdict"] or "none", "share_frac": found["share_frac"],
            "median_s": case_summary(run)["median_s"].iloc[0],
            "lost_frac": use["lost_frac"], "others_cores": use["others_cores"]}


def main() -> None:
    """Print the runs, and the share of false verdicts by lost share."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(repeats):
            for number, busy_frac in LOADS:
                for name, arguments in CASES.items():
                    with load(number, busy_frac):
                        row = profiled(arguments, Path(folder))
                    rows.append({"case": name, "load": f"{number} x {busy_frac:.0%}", "repeat": repeat, **row})
                    print(*rows[-1].values(), flush=True)
    runs = pd.DataFrame(rows)
    idle = runs[runs["load"].str.startswith("0")].groupby("case")
    usual = idle["verdict"].agg(lambda found: found.mode()[0])
    runs["is_false"] = runs["verdict"] != runs["case"].map(usual)
    runs["slowdown"] = runs["median_s"] / runs["case"].map(idle["median_s"].median())
    edges = [-0.001, 0.01, 0.03, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0]
    table = runs.groupby(pd.cut(runs["lost_frac"], edges), observed=True).agg(
        num_runs=("is_false", "size"), false_frac=("is_false", "mean"), slowdown=("slowdown", "median"),
        slowest=("slowdown", "max"))
    print(f"\n{usual.to_string()}\n\n{runs.groupby('load')[['lost_frac', 'slowdown', 'is_false']].mean()}\n\n{table}")


if __name__ == "__main__":
    main()
