"""Regression gate: thresholds on ratios. A ratio significantly beyond its threshold is a regression."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from charact.analysis.compare.matching import Group, matched_cases
from charact.analysis.compare.ratios import metric_ratios, ratios
from charact.analysis.compare.thresholds import Threshold
from charact.core.errors import UserError

OUTCOMES = ("ok", "regression", "not significant", "n/a")
"""Outcomes of a threshold for a case; `not significant`: beyond the threshold, but within noise."""

_NUMBERS = ["limit", "base", "value", "ratio", "low", "high", "p_value"]
_COLUMNS = ["case", "side", "rule", "metric", *_NUMBERS, "outcome", "reason"]


def judge(thresholds: Sequence[Threshold], sides: Sequence[Group]) -> pd.DataFrame:
    """Return the outcome of every threshold for every case of each group that the baseline (first) also has.

    Columns: case, as in `matched_cases` of the group and the baseline; side; rule, the threshold's text; metric; limit,
    the largest allowed ratio (smallest with <); base and value in the metric's unit (phases in seconds);
    ratio, low, high and p_value as in `ratios`; outcome, one of `OUTCOMES`; reason, why there is no interval. The
    outcome is 'n/a' without a ratio, or if the significance of a ratio beyond the limit is unknown.
    """
    rows = []
    for side in sides[1:]:
        pair = [sides[0], side]
        found = _ratios(thresholds, pair)
        rows += [_judged(threshold, case, side.label, found.get((case, threshold.metric)))
                 for threshold in thresholds for case in matched_cases(pair)["case"].unique()]
    return pd.DataFrame(rows, columns=_COLUMNS).astype(dict.fromkeys(_NUMBERS, "float64") | {"reason": "str"})


def has_failed(judged: pd.DataFrame) -> bool:
    """Return whether any threshold found a regression."""
    if judged.empty:
        raise UserError("no threshold could be checked: the groups of runs have no case in common, so measure the same "
                        "cases in each")
    if (judged["outcome"] == "n/a").all():
        reasons = "; ".join(f"{threshold}: {reason}" for threshold, reason in
                            judged.drop_duplicates("rule")[["rule", "reason"]].itertuples(index=False, name=None))
        raise UserError(f"no threshold could be checked ({reasons}): choose metrics that both groups of runs have")
    return bool((judged["outcome"] == "regression").any())


def _ratios(thresholds: Sequence[Threshold], sides: Sequence[Group]) -> dict[tuple[str, str], dict[Any, Any]]:
    """Return the rows of `metric_ratios` and `ratios` that the thresholds need, by case and metric."""
    frames = []
    if any(threshold.phase is None for threshold in thresholds):
        frames.append(metric_ratios(sides))
    if any(threshold.phase is not None for threshold in thresholds):
        phases = ratios(sides, "phase")
        frames.append(phases.assign(metric="phase." + phases["phase"]).rename(
            columns={"base_s": "base", "time_s": "value"}))
    rows: list[dict[Any, Any]] = [row for frame in frames for row in frame.to_dict("records")]
    return {(row["case"], row["metric"]): row for row in rows}


def _judged(threshold: Threshold, case: str, side: str, row: dict[Any, Any] | None) -> dict[str, Any]:
    known = {"case": case, "side": side, "rule": str(threshold), "metric": threshold.metric, "limit": threshold.limit}
    if row is None:
        return known | {"outcome": "n/a", "reason": "neither group of runs has this phase"}
    found = {name: row[name] for name in (*_NUMBERS, "reason") if name != "limit"}
    return known | found | {"outcome": _outcome(threshold, row)}


def _outcome(threshold: Threshold, row: dict[Any, Any]) -> str:
    if pd.isna(row["ratio"]):
        return "n/a"
    if not threshold.is_exceeded_by(row["ratio"]):
        return "ok"
    if row["significant"]:
        return "regression"
    return "n/a" if pd.isna(row["p_value"]) else "not significant"
