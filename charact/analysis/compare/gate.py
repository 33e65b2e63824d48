"""Whether a comparison passes: rules against ratios. A rule fails where its limit is passed and that is no noise."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from charact.analysis.compare.matching import matched_cases
from charact.analysis.compare.metrics import metric_ratios
from charact.analysis.compare.ratios import ratios
from charact.analysis.compare.run_groups import Side
from charact.analysis.compare.thresholds import Rule
from charact.core.errors import UserError

OUTCOMES = ("ok", "regression", "not significant", "n/a")
"""What a rule finds of a case: `not significant` where the limit is passed, but by no more than noise."""

_NUMBERS = ["limit", "base", "value", "ratio", "low", "high", "p_value"]
_COLUMNS = ["case", "side", "rule", "metric", *_NUMBERS, "outcome", "reason"]


def judge(rules: Sequence[Rule], sides: Sequence[Side]) -> pd.DataFrame:
    """Every rule on every case that a side shares with the first, the baseline.

    Columns: case, as in `matched_cases` of the two; side; rule, as its text; metric; limit, the ratio that it must not
    pass; base and value in the metric's unit, of a phase in seconds; ratio, low, high and p_value as in `ratios`;
    outcome, of `OUTCOMES`; reason, why there is no interval. An outcome is 'n/a' where there is no ratio, or nothing
    tells whether one beyond the limit is more than noise.
    """
    rows = []
    for side in sides[1:]:
        pair = [sides[0], side]
        found = _ratios(rules, pair)
        rows += [_judged(rule, case, side.label, found.get((case, rule.metric)))
                 for rule in rules for case in matched_cases(pair)["case"].unique()]
    return pd.DataFrame(rows, columns=_COLUMNS).astype(dict.fromkeys(_NUMBERS, "float64") | {"reason": "str"})


def has_failed(judged: pd.DataFrame) -> bool:
    """Whether any rule found a regression.

    Raises:
        UserError: no rule could be judged on any case.
    """
    if (judged["outcome"] == "n/a").all():
        reasons = "; ".join(f"{rule}: {reason}" for rule, reason in
                            judged.drop_duplicates("rule")[["rule", "reason"]].itertuples(index=False, name=None))
        raise UserError(f"nothing could be judged ({reasons}): choose metrics that both sides have")
    return bool((judged["outcome"] == "regression").any())


def _ratios(rules: Sequence[Rule], sides: Sequence[Side]) -> dict[tuple[str, str], dict[Any, Any]]:
    """Rows of `metric_ratios` and `ratios` of two sides by case and metric, as far as rules need them."""
    frames = []
    if any(rule.phase is None for rule in rules):
        frames.append(metric_ratios(sides))
    if any(rule.phase is not None for rule in rules):
        phases = ratios(sides, "phase")
        frames.append(phases.assign(metric="phase." + phases["phase"]).rename(
            columns={"base_s": "base", "time_s": "value"}))
    rows: list[dict[Any, Any]] = [row for frame in frames for row in frame.to_dict("records")]
    return {(row["case"], row["metric"]): row for row in rows}


def _judged(rule: Rule, case: str, side: str, row: dict[Any, Any] | None) -> dict[str, Any]:
    told = {"case": case, "side": side, "rule": str(rule), "metric": rule.metric, "limit": rule.limit}
    if row is None:
        return told | {"outcome": "n/a", "reason": "neither side has such a phase"}
    found = {name: row[name] for name in (*_NUMBERS, "reason") if name != "limit"}
    return told | found | {"outcome": _outcome(rule, row)}


def _outcome(rule: Rule, row: dict[Any, Any]) -> str:
    if pd.isna(row["ratio"]):
        return "n/a"
    if not rule.is_passed_by(row["ratio"]):
        return "ok"
    if row["significant"]:
        return "regression"
    return "n/a" if pd.isna(row["p_value"]) else "not significant"
