"""Speedups by workload and dataset, as the literature prints them, and their geometric means."""

import math
from collections.abc import Sequence
from statistics import fmean, variance
from typing import Any

import pandas as pd

from charact.analysis.compare.matching import matched_cases
from charact.analysis.compare.metrics import metric_ratios
from charact.analysis.compare.run_groups import Side
from charact.core.errors import UserError
from charact.core.statistics import student_factor

GROUPS = ("workload", "variant", "data", "mode", "input_size", "batch_size", "precision")
"""What geometric means can be taken by."""

_TIMES = ("total_time", "inference_time", "time")
"""What a speedup is of: the first that both sides have and that compares."""


def speedups(sides: Sequence[Side]) -> pd.DataFrame:
    """How many times as fast as the baseline each side is in each matched case.

    Columns: case; the `GROUPS` that it belongs to, as in the manifest; side; metric, what the times are: of a training
    the total time, or that of an epoch where the number of epochs differs, of an inference load and prediction, else an
    iteration; base_s and time_s; speedup = base_s / time_s, with low to high, its 95 % interval; p_value, significant
    and reason as in `ratios`.
    """
    found = metric_ratios(sides)
    found = found[found["metric"].isin(_TIMES)]
    found["rank"] = found["metric"].map(_TIMES.index).astype("int64") + len(_TIMES) * found["ratio"].isna()
    best = found.loc[found.groupby(["case", "side"], sort=False)["rank"].idxmin()]
    best = best.rename(columns={"base": "base_s", "value": "time_s"}).assign(
        speedup=1 / best["ratio"], low=1 / best["high"], high=1 / best["low"])
    groups = pd.DataFrame(_groups(sides), columns=["case", *GROUPS])
    columns = ["case", *GROUPS, "side", "metric", "base_s", "time_s", "speedup", "low", "high", "p_value",
               "significant", "reason"]  # fmt: skip
    return best.merge(groups, on="case", how="left")[columns]


def geometric_means(sides: Sequence[Side], by: str | None = None) -> pd.DataFrame:
    """Geometric mean of the speedups of each group of cases, or of all, on each side.

    Columns: the group, in a column of the name `by` (none without); side; num_cases, of which there is a speedup;
    speedup; low to high, its 95 % interval; reason, why there is none. The interval tells what other cases of the kind
    would give: it comes from how cases differ (Student's t of their logarithms), or from how well each is known where
    that says more. Of one case it is the case's own.

    Raises:
        UserError: `by` is none of `GROUPS`.
    """
    if by is not None and by not in GROUPS:
        raise UserError(f"there is no mean by '{by}': choose from {', '.join(GROUPS)}")
    keys = [*([by] if by else []), "side"]
    found = speedups(sides)
    rows = [
        [*key, *geometric_mean(cases.dropna(subset=["speedup"]))]
        for key, cases in found.groupby(keys, sort=False, dropna=False)
    ]  # fmt: skip
    means = pd.DataFrame(rows, columns=[*keys, "num_cases", "speedup", "low", "high", "reason"])
    return means.astype(dict.fromkeys(["speedup", "low", "high"], "float64") | {"num_cases": "int64", "reason": "str"})


def _groups(sides: Sequence[Side]) -> list[list[Any]]:
    """What each matched case is, as the baseline's manifest tells."""
    cases = matched_cases(sides)
    cases = cases[cases["side"] == sides[0].label].drop_duplicates("case")
    entries = {
        (number, entry["case"]): entry for number, run in enumerate(sides[0].runs) for entry in run.manifest["cases"]}
    places = zip(cases["case"], cases["run"], cases["run_case"], strict=True)
    return [[case, *(entries[run, run_case].get(name) for name in GROUPS)] for case, run, run_case in places]


def geometric_mean(cases: pd.DataFrame) -> list[Any]:
    """Number of speedups, their geometric mean, its interval, and why there is none.

    Columns taken: speedup, low, high and reason.
    """
    logs = [math.log(speedup) for speedup in cases["speedup"]]
    if not logs:
        return [0, None, None, None, "no case has a speedup"]
    if len(logs) == 1:
        only = cases.iloc[0]
        return [1, only["speedup"], only["low"], only["high"], only["reason"]]
    mean = fmean(logs)
    reach = student_factor(len(logs) - 1) * math.sqrt(variance(logs) / len(logs))
    known = [math.log(high / low) / 2 for low, high in zip(cases["low"], cases["high"], strict=True)]
    within = math.sqrt(sum(half**2 for half in known if half == half)) / len(logs)
    reach = max(reach, within)
    return [len(logs), math.exp(mean), math.exp(mean - reach), math.exp(mean + reach), None]
