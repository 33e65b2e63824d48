"""Table and texts of the regression gate's outcomes."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from charact.analysis.compare import Group
from charact.analysis.compare.gate import OUTCOMES
from charact.analysis.compare.group_facts import disturbed_cases
from charact.core.units import digits
from charact.views.tables import format as fmt
from charact.views.tables import metric_text
from charact.views.tables.comparison_speedups import CASE, INTERVAL, candidate, exact_ratio, side_column
from charact.views.tables.model import Column, Table, table

_SHOWN = ("regression", "not significant", "n/a", "ok")
"""Outcomes in display order."""
_SMALL = 0.001
_NOTE = "A threshold fails if the ratio passes it significantly, by interval and p. Counted metrics have no noise."
_OF_VALUE_NOTE = "A limit of a value fails if the value and its 95 % interval are beyond it."
_OF_VALUE = "the limit is of the value"
_SINGLE = (
    "The interval of a single run does not cover variation between runs, such as clocks and other load, so equal "
    "programs may fail too: take several runs per group, alternating."
)


def headline(judged: pd.DataFrame) -> str:
    """Count the thresholds by outcome: 1 regression; 5 ok, 1 n/a."""
    counts = judged["outcome"].value_counts()
    others = [f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if outcome != "regression" and outcome in counts]
    num_regressions = int(counts.get("regression", 0))
    found = f"{num_regressions or 'no'} regression{'' if num_regressions == 1 else 's'}"
    return "; ".join([found, ", ".join(others)] if others else [found])


def gate_table(judged: pd.DataFrame, sides: Sequence[Group]) -> Table:
    """Build the table of every threshold on every case, regressions first."""
    order = judged["outcome"].map({outcome: rank for rank, outcome in enumerate(_SHOWN)})
    rows = judged.loc[order.sort_values(kind="stable").index]
    words = [(_outcome(row), *values(row), interval(row)) for row in fmt.rows(rows)]
    shown = ["outcome", "base", "value", "interval"]
    rows[shown] = pd.DataFrame(words, index=rows.index, columns=shown)
    of_value = rows["is_of_value"]
    baseline = [Column("base", sides[0].label, unbroken=True)] if len(sides) > 1 else []
    compared = [] if of_value.all() else [
        Column("ratio", "Ratio", exact_ratio, "value / baseline’s",
               lambda row: _OF_VALUE if row.is_of_value else None), INTERVAL,
        Column("p_value", "p", _probability, "probability of such a difference where there is none", _reason)]
    columns = [
        Column("outcome", "Outcome"), Column("rule", "Threshold", unbroken=True), CASE, *side_column(sides),
        *baseline, Column("value", candidate(sides), unbroken=True), *(compared or [INTERVAL]),
    ]  # fmt: skip
    single = rows["low"].notna().any() and any(len(side.runs) == 1 for side in sides)
    disturbed = disturbed_cases(sides)
    num_runs = len(disturbed[disturbed["case"].isin(rows["case"])][["side", "run"]].drop_duplicates())
    notes = ["" if of_value.all() else _NOTE, _OF_VALUE_NOTE if of_value.any() else "", _SINGLE if single else "",
             f"Other programs disturbed cases in {num_runs} run{'' if num_runs == 1 else 's'}: measure these again."
             if num_runs else ""]
    return table(rows, "Gate", columns, " ".join(filter(None, notes)))


def values(row: Any) -> tuple[str, str]:
    """Format the metric's values in the baseline and the candidate, from a row of `judge`."""
    why = _OF_VALUE if row.is_of_value else "not measured"
    return (metric_text.value_alone(row.metric, row.base, why),
            metric_text.value_alone(row.metric, row.value, "not measured"))


def interval(row: Any) -> str:
    """Format the interval of a row's ratio, 1.071–1.094, or of its value, 35.2 % to 36.0 %."""
    if row.is_of_value:
        ends = [metric_text.value_alone(row.metric, end) for end in (row.value_low, row.value_high)]
        why = "not measured" if pd.isna(row.value) else "fewer than 6 iterations"
        return fmt.missing(why) if pd.isna(row.value_low) else " to ".join(ends)
    return fmt.missing(_reason(row)) if pd.isna(row.low) else f"{digits(row.low, 4)}–{digits(row.high, 4)}"


def sentence(row: Any) -> str:
    """Format a threshold's outcome for a case with its numbers, from a row of `judge`."""
    if row.outcome == "n/a":
        return fmt.missing(row.reason)
    base, value = values(row)
    if row.is_of_value:
        return f"{row.outcome}: {value}, 95 % interval {interval(row)} (threshold: {row.rule})"
    stated = f"95 % interval {interval(row)}, p {'' if row.p_value < _SMALL else '= '}{_probability(row.p_value)}"
    certainty = f" ({row.reason})" if pd.isna(row.low) else f", {stated}"
    return f"{row.outcome}: {base} to {value}, ratio {digits(row.ratio, 4)}{certainty} (threshold: {row.rule})"


def _reason(row: Any) -> str | None:
    """Return why there is no interval; None if the outcome n/a already gives the reason."""
    return None if row.outcome.startswith("n/a") or pd.isna(row.reason) else str(row.reason)


def _outcome(row: Any) -> str:
    return fmt.missing(row.reason) if row.outcome == "n/a" else str(row.outcome)


@fmt.or_missing
def _probability(value: float) -> str:
    return f"< {_SMALL}" if value < _SMALL else f"{value:.3f}"
