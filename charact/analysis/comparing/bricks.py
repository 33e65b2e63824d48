"""Suites of bricks on several sides: how many times as fast their bricks are, and which of them a side lacks."""

from collections.abc import Sequence

import pandas as pd

from charact.analysis.bricks.run_tables import brick_summary
from charact.analysis.comparing.brick_samples import brick_name
from charact.analysis.comparing.matching import matched_cases
from charact.analysis.comparing.ratios import ratios
from charact.analysis.comparing.sides import Side
from charact.analysis.comparing.speedups import geometric_mean

ALL = "all bricks"


def brick_means(sides: Sequence[Side]) -> pd.DataFrame:
    """Geometric mean of how many times as fast as the baseline the bricks of each matched suite are.

    Columns: case; layers, `ALL` in a case's first row, then the layer types of the bricks, most bricks first; side;
    num_bricks that both have; speedup; low to high, its 95 % interval, and reason as in `geometric_means`.
    """
    found = ratios(sides, "brick").dropna(subset=["ratio"])
    found = found.assign(speedup=1 / found["ratio"], low=1 / found["high"], high=1 / found["low"],
                         layers=[name.partition(" ")[2] or "not told" for name in found["brick"]])  # fmt: skip
    rows = []
    for (case, side), bricks in found.groupby(["case", "side"], sort=False):
        groups = [(str(layers), some) for layers, some in bricks.groupby("layers", sort=False)]
        groups.sort(key=lambda group: -len(group[1]))
        rows += [[case, layers, side, *geometric_mean(some)] for layers, some in [(ALL, bricks), *groups]]
    numbers = ["speedup", "low", "high"]
    means = pd.DataFrame(rows, columns=["case", "layers", "side", "num_bricks", *numbers, "reason"])
    return means.astype(dict.fromkeys(numbers, "float64") | {"num_bricks": "int64", "reason": "str"})


def unmatched_bricks(sides: Sequence[Side]) -> pd.DataFrame:
    """Bricks of matched suites that have a time in the baseline or on another side, and none on the other of the two.

    Columns: case; brick, its identifier and layers; side, which has a time; missing_in; why.
    """
    found = ratios(sides, "brick")
    failed = _failed(sides)
    rows = []
    for row in found[found["base_s"].isna() | found["time_s"].isna()].to_dict("records"):
        has, lacks = (row["side"], sides[0].label) if pd.isna(row["base_s"]) else (sides[0].label, row["side"])
        why = failed.get((lacks, row["case"], row["brick"]), "the suite there lacks it")
        rows.append([row["case"], row["brick"], has, lacks, why])
    return pd.DataFrame(rows, columns=["case", "brick", "side", "missing_in", "why"], dtype="str")


def _failed(sides: Sequence[Side]) -> dict[tuple[str, str, str], str]:
    """Why bricks have no time, by side, case and name."""
    runs = {(side.label, number): run for side in sides for number, run in enumerate(side.runs)}
    found = {}
    for place in matched_cases(sides).to_dict("records"):
        bricks = brick_summary(runs[place["side"], place["run"]])
        for row in bricks[(bricks["case"] == place["run_case"]) & bricks["time_s"].isna()].to_dict("records"):
            name = brick_name(row["brick"], row["layers"])
            found[place["side"], place["case"], name] = str(row["time_reason"])
    return found
