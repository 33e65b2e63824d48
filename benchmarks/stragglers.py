"""How often the rank and the phase of a straggler are right, and how often equal ranks get a verdict.

Run `python benchmarks/stragglers.py records/ [--runs 200] [--without 100]`. Each run trains a small model on 2 or 3
ranks under `charact run`, with DDP or FSDP2 over gloo; one rank sleeps in one phase of each iteration, or none does.
Every rank also sleeps for the same time in each iteration, so that delays are 10 to 90 % of it. Which delays come in
which order is fixed. The directory keeps the records: a run that it has is not repeated.
"""

import argparse
import itertools
import random
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from charact.analysis.ranks.stragglers import stragglers
from charact.record.reader import load_run

ROOT = Path(__file__).parents[1]
SEED = 26
DELAYS_S = (0.025, 0.05, 0.1, 0.2)
BASES_S = (0.03, 0.1)
PHASES = ("data", "forward", "loss", "backward", "update")
SHARES = (0.0, 0.1, 0.2, 0.5, 1.0)
"""Bounds of the table's rows: the delay's share of the iteration."""


class Delay(NamedTuple):
    """A run: how ranks exchange data, how many there are, and who sleeps where for how long (s)."""

    parallel: str
    world_size: int
    rank: int
    phase: str
    delay_s: float
    base_s: float


def delays() -> list[Delay]:
    """Return all combinations in their fixed order."""
    places = [(size, rank) for size in (2, 3) for rank in range(size)]
    chosen = random.Random(SEED)
    every = [Delay(parallel, *place, phase, delay_s, chosen.choice(BASES_S)) for parallel, place, phase, delay_s
             in itertools.product(("ddp", "fsdp2"), places, PHASES, DELAYS_S)]
    chosen.shuffle(every)
    return every


def without_delay(number: int) -> list[Delay]:
    """Return runs in which no rank sleeps longer than the others; `delay_s` counts them."""
    chosen = random.Random(SEED + 1)
    return [Delay(chosen.choice(("ddp", "fsdp2")), chosen.choice((2, 3)), 0, "none", float(index),
                  chosen.choice(BASES_S)) for index in range(number)]


def record(server: Any, delay: Delay, iterations: int, kept: Path) -> Path:
    """Run a program, unless its record is kept; return the record."""
    from support.ranks import run_ranks

    path = kept / "-".join(map(str, delay))
    if not path.exists():
        place = Path(tempfile.mkdtemp())
        seconds = 0.0 if delay.phase == "none" else delay.delay_s
        run = run_ranks(server, place, "--parallel", delay.parallel, "--sleep", delay.phase, "--seconds", seconds,
                        "--slow", delay.rank, "--base", delay.base_s, "--iterations", iterations,
                        world_size=delay.world_size)
        shutil.move(run.path, path)
        shutil.rmtree(place, ignore_errors=True)
    return path


def judged(delay: Delay, path: Path) -> dict[str, Any]:
    """Return what charact says of a record."""
    run = load_run(path)
    (found,) = stragglers(run).to_dict("records")
    walls_s = run.iterations.groupby(["case", "iteration"])["host_s"].sum()
    names = ("verdict", "rank", "phase", "extra_s", "wait_s", "share_frac", "evidence", "reason")
    return {"delay": delay, "delay_s": delay.delay_s, "slow_rank": delay.rank, "slow_phase": delay.phase,
            "iteration_s": float(walls_s.median()), **{name: found[name] for name in names}}


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return how many verdicts are right, by the delay's share of the iteration."""
    rows = rows[rows["slow_phase"] != "none"]
    rows = rows.assign(share=pd.cut(rows["delay_s"] / rows["iteration_s"], SHARES, right=False),
                       right=[is_right(row) for row in rows.to_dict("records")],
                       error=(rows["wait_s"] / rows["delay_s"] - 1).abs())
    return rows.groupby("share", observed=True).agg(
        runs=("right", "size"), right=("right", "mean"), median_error=("error", "median"),
        within_15=("error", lambda errors: (errors <= 0.15).mean()))


def is_right(row: Mapping[Any, Any]) -> bool:
    """Return whether the verdict names the rank and the phase that sleep, or none if none does."""
    if row["slow_phase"] == "none":
        return bool(row["verdict"] == "balanced")
    return (row["verdict"], row["rank"], row["phase"]) == ("straggler", row["slow_rank"], row["slow_phase"])


def main() -> None:
    """Run what is missing in the directory, and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("records", type=Path)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--without", type=int, default=100)
    parser.add_argument("--iterations", type=int, default=16)
    options = parser.parse_args()
    options.records.mkdir(exist_ok=True)
    sys.path.insert(0, str(ROOT / "tests"))
    from support.forked import serving

    found = []
    with serving() as server:
        for pair in itertools.zip_longest(delays()[:options.runs], without_delay(options.without)):
            for delay in filter(None, pair):
                found.append(judged(delay, record(server, delay, options.iterations, options.records)))
    rows = pd.DataFrame(found)
    print(table(rows).to_string())
    equal = rows[rows["slow_phase"] == "none"]
    print(f"without a delay: {int((equal['verdict'] != 'balanced').sum())} of {len(equal)} runs are not balanced")
    for row in rows.to_dict("records"):
        if not is_right(row):
            print("wrong:", *row["delay"], row["verdict"], row["rank"], row["phase"], row["evidence"] or row["reason"])


if __name__ == "__main__":
    main()
