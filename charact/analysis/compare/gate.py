"""Regression gate: thresholds on ratios and values. One that is significantly beyond its threshold is a regression."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from charact.analysis.compare.matching import Group, matched_cases
from charact.analysis.compare.ratios import metric_ratios, metric_values, ratios
from charact.analysis.compare.thresholds import Threshold
from charact.core.errors import UserError

OUTCOMES = ("ok", "regression", "not significant", "n/a")
"""Outcomes of a threshold for a case; `not significant`: beyond the threshold, but within noise."""

_FROM_RATIOS = ["base", "value", "ratio", "low", "high", "p_value"]
_OF_VALUE = ["value_low", "value_high"]
_COLUMNS = ["case", "side", "rule", "is_of_value", "metric", "limit", *_FROM_RATIOS, *_OF_VALUE, "outcome", "reason"]


def judge(thresholds: Sequence[Threshold], sides: Sequence[Group]) -> pd.DataFrame:
    """Return the outcome of every threshold for every case of each group that the baseline (first) also has.

    Thresholds of values need no baseline: of a single group, they are those of its own cases.

    Columns: case, as in `matched_cases` of the group and the baseline; side; rule, the threshold's text; is_of_value,
    whether its limit is of the value; metric; limit, the largest allowed ratio or value (smallest with <); base and
    value in the metric's unit (phases in seconds); ratio, low, high and p_value as in `ratios`, null if the limit is of
    the value; value_low and value_high, the 95 % interval of the value, null if the limit is of the ratio; outcome, one
    of `OUTCOMES`; reason, why there is no interval. The outcome is 'n/a' without a ratio, or if the significance of a
    ratio beyond the limit is unknown. A value beyond the limit is 'not significant' if its interval contains the limit;
    without an interval it is a regression.
    """
    rows = _judged_values([threshold for threshold in thresholds if threshold.is_of_value], sides)
    of_ratios = [threshold for threshold in thresholds if not threshold.is_of_value]
    for side in sides[1:] if of_ratios else ():
        pair = [sides[0], side]
        by_metric = _ratios(of_ratios, pair)
        for threshold in of_ratios:
            for case in matched_cases(pair)["case"].unique():
                row = {"case": case, "side": side.label, "rule": str(threshold), "is_of_value": False,
                       "metric": threshold.metric, "limit": threshold.limit, "outcome": "n/a",
                       "reason": "neither group of runs has this phase"}
                if (ratio := by_metric.get((case, threshold.metric))) is not None:
                    row |= {name: ratio[name] for name in (*_FROM_RATIOS, "reason")}
                    if ratio["ratio"] == ratio["ratio"] and not threshold.is_exceeded_by(ratio["ratio"]):
                        row["outcome"] = "ok"
                    elif ratio["significant"]:
                        row["outcome"] = "regression"
                    elif ratio["p_value"] == ratio["p_value"]:
                        row["outcome"] = "not significant"
                rows.append(row)
    order = {str(threshold): number for number, threshold in enumerate(thresholds)}
    rows.sort(key=lambda row: ([side.label for side in sides].index(row["side"]), order[row["rule"]]))
    numbers = dict.fromkeys(["limit", *_FROM_RATIOS, *_OF_VALUE], "float64")
    return pd.DataFrame(rows, columns=_COLUMNS).astype(numbers | {"reason": "str"})


def _judged_values(thresholds: Sequence[Threshold], sides: Sequence[Group]) -> list[dict[str, Any]]:
    """Return rows of `judge` for thresholds of values."""
    rows: list[dict[str, Any]] = []
    values = metric_values(sides).to_dict("records") if thresholds else []
    for threshold in thresholds:
        for row in (row for row in values if row["metric"] == threshold.metric):
            ends = [row[name] for name in ("low", "high") if row[name] == row[name]] or [row["value"]]
            outcome = ("n/a" if row["value"] != row["value"] else "ok" if not threshold.is_exceeded_by(row["value"])
                       else "regression" if all(map(threshold.is_exceeded_by, ends)) else "not significant")
            rows.append({"case": row["case"], "side": row["side"], "rule": str(threshold), "is_of_value": True,
                         "metric": threshold.metric, "limit": threshold.limit, "value": row["value"],
                         "value_low": row["low"], "value_high": row["high"], "outcome": outcome,
                         "reason": row["reason"]})
    return rows


def has_failed(judged: pd.DataFrame) -> bool:
    """Return whether any threshold found a regression."""
    if judged.empty:
        raise UserError("no threshold could be checked: the groups of runs have no case in common, so measure the same "
                        "cases in each")
    if (judged["outcome"] == "n/a").all():
        reasons = "; ".join(f"{threshold}: {reason}" for threshold, reason in
                            judged.drop_duplicates("rule")[["rule", "reason"]].itertuples(index=False, name=None))
        raise UserError(f"no threshold could be checked ({reasons}): choose metrics that all groups of runs have")
    return bool((judged["outcome"] == "regression").any())


def _ratios(thresholds: Sequence[Threshold], sides: Sequence[Group]) -> dict[tuple[str, str], dict[Any, Any]]:
    frames = []
    if any(threshold.phase is None for threshold in thresholds):
        frames.append(metric_ratios(sides))
    if any(threshold.phase is not None for threshold in thresholds):
        phases = ratios(sides, "phase").rename(columns={"base_s": "base", "time_s": "value"})
        frames.append(phases.assign(metric="phase." + phases["phase"]))
    rows: list[dict[Any, Any]] = [row for frame in frames for row in frame.to_dict("records")]
    return {(row["case"], row["metric"]): row for row in rows}
