"""Suites of bricks in several groups of runs: speedups of the bricks, and bricks that a group lacks."""

from collections.abc import Sequence

import pandas as pd

from charact.analysis.compare.matching import Group
from charact.analysis.compare.ratios import ratios
from charact.analysis.compare.speedups import geometric_mean
from charact.bricks.analysis.compare.times.bricks import brick_name
from charact.bricks.analysis.tables import brick_summary

ALL = "all bricks"


def brick_means(sides: Sequence[Group]) -> pd.DataFrame:
    """Return the geometric mean of the speedups of each matched suite's bricks over the baseline.

    Columns: case; layers, `ALL` in a case's first row, then the layer types of the bricks, most bricks first; side;
    num_bricks in both groups; speedup; low to high, its 95 % interval, and reason as in `geometric_means`.
    """
    found = ratios(sides, "brick").dropna(subset=["ratio"])
    found = found.assign(speedup=1 / found["ratio"], low=1 / found["high"], high=1 / found["low"],
                         layers=[name.partition(" ")[2] or "unknown" for name in found["brick"]])  # fmt: skip
    rows = []
    for (case, side), bricks in found.groupby(["case", "side"], sort=False):
        groups = [(str(layers), some) for layers, some in bricks.groupby("layers", sort=False)]
        groups.sort(key=lambda group: -len(group[1]))
        rows += [[case, layers, side, *geometric_mean(some)] for layers, some in [(ALL, bricks), *groups]]
    numbers = ["speedup", "low", "high"]
    means = pd.DataFrame(rows, columns=["case", "layers", "side", "num_bricks", *numbers, "reason"])
    return means.astype(dict.fromkeys(numbers, "float64") | {"num_bricks": "int64", "reason": "str"})


def unmatched_bricks(sides: Sequence[Group]) -> pd.DataFrame:
    """Return bricks of matched suites that are timed in only one of the baseline and another group.

    Columns: case; brick, its identifier and layers; side, the group with a time; missing_in; why.
    """
    found = ratios(sides, "brick")
    lacking = found[found["base_s"].isna() | found["time_s"].isna()]
    failed = {(side.label, brick_name(row["brick"], row["layers"])): str(row["time_reason"]) for side in sides
              for run in side.runs for row in brick_summary(run).query("time_s.isna()").to_dict("records")}
    rows = []
    for row in lacking.to_dict("records"):
        has, lacks = (row["side"], sides[0].label) if pd.isna(row["base_s"]) else (sides[0].label, row["side"])
        why = failed.get((lacks, row["brick"]), "not in the suite there")
        rows.append([row["case"], row["brick"], has, lacks, why])
    return pd.DataFrame(rows, columns=["case", "brick", "side", "missing_in", "why"], dtype="str")
