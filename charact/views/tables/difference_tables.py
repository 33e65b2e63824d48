"""Tables that attribute a difference, shared by the terminal, Markdown and the report."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pandas as pd

from charact.analysis.compare import Group, matched_cases, ratios
from charact.analysis.compare.differences import differences, main_parts, missing_levels
from charact.analysis.compare.group_facts import clock_changes
from charact.analysis.compare.selection import read_parts
from charact.core.operator_types import OUTSIDE_OPERATORS
from charact.views.tables import format as fmt
from charact.views.tables.comparison_tables import DIFFERS, significant_verdict
from charact.views.tables.counter_text import counter_name, counter_value
from charact.views.tables.model import Column, Table, table

NOT_TIMED = "no iterations were timed in both groups"
"""Reason for a missing explanation."""

_MOST = {"operator": 15, "layer": 10, "kernel": 10}
_CAPTIONS = {"operator": "Operators that account for the difference in {}", "layer": "Operators of {} by layer",
             "kernel": "Kernels of {}"}  # fmt: skip


@dataclass(frozen=True)
class Explanation:
    """Explanation of a case's difference: its `differences`, whether its time differs significantly, and the tables.

    Rows and tables are empty if no iterations were timed in both groups.
    """

    case: str
    rows: pd.DataFrame
    significant: bool
    tables: list[Table]


def explanations(base: Group, new: Group, cases: Collection[str] | None = None, num_rows: int | None = None
                 ) -> list[Explanation]:
    """Return the explanations of the cases that two groups share, or of the given cases, as in `matched_cases`.

    Tables of operators, layers and kernels have `num_rows` rows; by default, 10 to 15.
    """
    some = None if cases is None else frozenset(cases)
    read_parts([base, new], ["case", "phase"], set(matched_cases([base, new])["case"]) if some is None else some)
    whole, phases = (ratios([base, new], by, some) for by in ("case", "phase"))
    judged = {row.case: row for row in fmt.rows(whole) if cases is None or row.case in cases}
    return [_explanation(base, new, row, phases[phases["case"] == case], num_rows) for case, row in judged.items()]


def _explanation(base: Group, new: Group, whole: Any, judged: pd.DataFrame, num_rows: int | None) -> Explanation:
    case = str(whole.case)
    rows = differences(base, new, case)
    if rows.empty:
        return Explanation(case, rows, False, [])
    verdicts = {row.phase: _verdict(row) for row in fmt.rows(judged)} | {"iteration": _verdict(whole)}
    missing = missing_levels(base, new, case)
    phases = _phase_table(rows, base, new, case, verdicts, _unavailable(missing))
    parts = [_part_table(rows, level, base, new, case, num_rows or most) for level, most in _MOST.items()]
    return Explanation(case, rows, bool(whole.significant),
                       [phases, *filter(None, parts), *_clock_table(base, new, case)])


def _phase_table(rows: pd.DataFrame, base: Group, new: Group, case: str, verdicts: dict[str, str],
                 missing: str) -> Table:
    phases = rows[rows["level"] == "phase"]
    total = phases[["base_s", "new_s", "delta_s"]].sum().to_frame().T.assign(name="iteration")
    shown = pd.concat([phases, total])
    verdicts = {row.name: _of_what(verdicts[row.name], row.delta_s) for row in fmt.rows(shown)}
    shown["verdict"] = list(verdicts.values())
    columns = [Column("name", "Phase", unbroken=True), *_times(base, new), Column("verdict", "Verdict", unbroken=True)]
    note = ("A phase’s time is its share of all iterations times the median iteration, so phases sum to the median. "
            "Verdicts in the times by phase use each phase’s own medians.")
    most = [f"Most of {row.phase}’s is in {_operator(row)}: {fmt.change(row.delta_s)}."
            for row in fmt.rows(main_parts(rows)) if verdicts[row.phase] in ("slower", "faster", DIFFERS)]
    note = " ".join(filter(None, [*most, note, missing]))
    return table(shown, f"Phases that account for the difference in {case}", columns, note)


def _operator(row: Any) -> str:
    if row.operator == OUTSIDE_OPERATORS:
        return "no operator"
    return f"{row.operator} {f'of layer {row.layer}' if row.layer else 'outside of layers'}"


def _part_table(rows: pd.DataFrame, level: str, base: Group, new: Group, case: str, num_rows: int) -> Table | None:
    """Build the table of operators, operators by layer, or kernels with the largest differences."""
    parts = rows[rows["level"] == level]
    if parts.empty:
        return None
    left_out = len(parts) - num_rows
    names = [Column("name", "Operator", wide=True), Column("layer", "Layer", wide=True)]
    shown = parts.head(num_rows).replace({"layer": {"": "(in none)"}})
    shown = shown.assign(change=[_changed(row) for row in fmt.rows(shown)])
    columns = [
        Column("phase", "Phase", unbroken=True),
        *(names if level == "layer" else [Column("name", level.capitalize(), wide=True)]), *_times(base, new),
        *([] if (shown["status"] == "both").all() else [Column("change", "Change", wide=True)]),
    ]  # fmt: skip
    note = "Shares of a phase under the profiler, scaled to the timing pass."
    if len(base.runs) == len(new.runs) == 1:
        note += " Operators are profiled once per run, so changes cannot be distinguished from noise."
    if left_out > 0:
        note += f" {left_out} more with smaller differences are left out: --top shows more rows."
    return table(shown, _CAPTIONS[level].format(case), columns, note)


def _changed(row: Any) -> str:
    """Format other changes of a part, with shapes that a narrow column can wrap."""
    if row.status == "both":
        return "in both"
    return row.status if pd.isna(row.detail) else f"{row.status}: {row.detail.replace('],[', '], [')}"


def _clock_table(base: Group, new: Group, case: str) -> list[Table]:
    clocks = clock_changes(base, new, case)
    if clocks.empty:
        return []
    for side in ("base", "new"):
        clocks[f"{side}_words"] = [counter_value(row.counter, getattr(row, side)) for row in fmt.rows(clocks)]
    clocks["counter"] = [counter_name(counter) for counter in clocks["counter"]]
    columns = [Column("counter", "Clock", unbroken=True), Column("source", "Source"), Column("base_words", base.label),
               Column("new_words", new.label)]  # fmt: skip
    return [table(clocks, f"Clocks while counters of {case} were read", columns)]


def _times(base: Group, new: Group) -> list[Column]:
    return [Column("base_s", base.label, fmt.seconds, "of the baseline's median iteration"),
            Column("new_s", new.label, fmt.seconds, "of the candidate's median iteration"),
            Column("delta_s", "Difference", fmt.change, "above 0 is slower")]  # fmt: skip


def _verdict(row: Any) -> str:
    if found := significant_verdict(row, ("slower", "faster")):
        return found
    return fmt.missing(row.reason) if pd.isna(row.p_value) else "no difference shown"


def _of_what(verdict: str, delta_s: float) -> str:
    """Return the verdict; if the difference in the same row has the other sign, name the verdict's basis."""
    against = {"slower": delta_s < 0, "faster": delta_s > 0}
    return f"{verdict} by its own median" if against.get(verdict) else verdict


def _unavailable(missing: pd.DataFrame) -> str:
    """Return why there are no operators or no kernels."""
    reasons = [f"{level}s of {' and '.join(rows['side'])}: {fmt.missing(str(reason))}"
            for (level, reason), rows in missing.groupby(["level", "reason"], sort=False)]
    return f"Not available: {'; '.join(reasons)}." if reasons else ""
