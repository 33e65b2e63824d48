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

_FROM_RATIOS = ["base", "value", "ratio", "low", "high", "p_value"]
_COLUMNS = ["case", "side", "rule", "metric", "limit", *_FROM_RATIOS, "outcome", "reason"]


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
        by_metric = _ratios(thresholds, pair)
        for threshold in thresholds:
            for case in matched_cases(pair)["case"].unique():
                row = {"case": case, "side": side.label, "rule": str(threshold), "metric": threshold.metric,
                       "limit": threshold.limit, "outcome": "n/a", "reason": "neither group of runs has this phase"}
                if (ratio := by_metric.get((case, threshold.metric))) is not None:
                    row |= {name: ratio[name] for name in (*_FROM_RATIOS, "reason")}
                    if ratio["ratio"] == ratio["ratio"] and not threshold.is_exceeded_by(ratio["ratio"]):
                        row["outcome"] = "ok"
                    elif ratio["significant"]:
                        row["outcome"] = "regression"
                    elif ratio["p_value"] == ratio["p_value"]:
                        row["outcome"] = "not significant"
                rows.append(row)
    numbers = dict.fromkeys(["limit", *_FROM_RATIOS], "float64")
    return pd.DataFrame(rows, columns=_COLUMNS).astype(numbers | {"reason": "str"})


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
    frames = []
    if any(threshold.phase is None for threshold in thresholds):
        frames.append(metric_ratios(sides))
    if any(threshold.phase is not None for threshold in thresholds):
        phases = ratios(sides, "phase").rename(columns={"base_s": "base", "time_s": "value"})
        frames.append(phases.assign(metric="phase." + phases["phase"]))
    rows: list[dict[Any, Any]] = [row for frame in frames for row in frame.to_dict("records")]
    return {(row["case"], row["metric"]): row for row in rows}
