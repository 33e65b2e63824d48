"""Tables of a comparison, shared by the terminal, Markdown, the report and TensorBoard."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from charact.analysis.common.significance import ONE_RUN_EACH
from charact.analysis.compare import Group, metric_ratios, ratios, unmatched_cases
from charact.analysis.compare.group_facts import (
    context_changes,
    disturbed_by_case,
    disturbed_cases,
    failed_cases,
    published_notes,
    side_facts,
)
from charact.analysis.compare.selection import Places, of_places
from charact.analysis.compare.turns import SAME_FRAC, decision
from charact.views.case_kind import all_kinds
from charact.views.tables import format as fmt
from charact.views.tables import metric_text
from charact.views.tables.comparison_speedups import (
    CASE,
    INTERVAL,
    SIDE,
    candidate,
    exact_ratio,
    interval,
    reason,
    side_column,
    speedup_tables,
)
from charact.views.tables.model import Column, Table, table, top

LEVELS = {
    "case": "case", "phase": "phase", "operator_type": "operator type", "operator": "operator", "layer": "layer",
    "kernel": "kernel", "problem": "problem", "brick": "brick", "layer_type": "layer type",
}  # fmt: skip
"""Levels at which times are compared, with their labels."""

_WIDE = ("kernel", "layer", "brick", "layer_type")

_UNTIMED = {"kernel": "no kernels in both groups: they run on GPUs only",
            "problem": "no basic operations in both groups",
            "brick": "no suites of bricks in both groups",
            "layer_type": "no suites of bricks or constructed models in both groups"}  # fmt: skip

_VERDICT = Column("verdict", "Verdict", unbroken=True)
_SINGLE_RUN = (
    "With one run per group a difference may be machine noise: the interval does not cover variation between runs, "
    "such as clocks and other load. charact compare --ab measures both several times, by turns."
)
DIFFERS = "differs (one run each)"
"""Verdict of a significant difference between single runs."""
INCONCLUSIVE = "inconclusive (disturbed)"
"""Verdict where no difference is shown and other programs disturbed a run."""
_AGAIN = ("A disturbed case shows no difference, though there may be one: measure it again when no other "
          "program runs, or with OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE, if they were not set, before charact "
          "compare --ab.")
_NO_DIFFERENCE = "no difference shown"
NOT_BY_RANKS = "not shown: the ranks of the times do not differ"
SAME = f"no difference above {SAME_FRAC:.0%}".replace("%", " %")
"""Verdict where turns show that a difference is smaller."""
_OF_WHAT = {"profile": "the median iteration", "training": "a training’s mean epoch",
            "operation": "an operation’s median call", "bricks": "the sum of a suite’s bricks",
            "construction": "a model’s constructed latency"}  # fmt: skip
"""What the time of a case is, by the kind of the case."""


def single_run_note(sides: Sequence[Group]) -> str:
    """Return what a single run of a group cannot show; empty if all measured groups have several."""
    measured_once = any(len(side.runs) == 1 and "reference" not in side.runs[0].manifest for side in sides)
    return _SINGLE_RUN if measured_once else ""


def tables(sides: Sequence[Group], levels: Sequence[str]) -> list[Table]:
    """Return all tables of a comparison, with times by these of `LEVELS`."""
    timed = {by: ratio_table(sides, by) for by in levels}
    untimed = pd.DataFrame(
        [(LEVELS[by], fmt.missing(_UNTIMED.get(by, "no case was timed so in both groups")))
         for by, shown in timed.items() if shown is None], columns=["level", "times"])
    found = [
        replace(sides_table(sides), note=single_run_note(sides)), *timed.values(),
        _filled(untimed, "Times not available", [Column("level", "By"), Column("times", "Times")]),
        *speedup_tables(sides), *tables_of_kinds(sides), metric_table(sides), failed_table(sides),
        disturbed_table(sides), unmatched_table(sides), context_table(sides),
        _filled(published_notes(sides), "Published tables", [SIDE, Column("note", "Note")]),
    ]  # fmt: skip
    return [each for each in found if each is not None]


def tables_of_kinds(sides: Sequence[Group]) -> list[Table]:
    """Return the tables that kinds of cases add."""
    return [table for kind in all_kinds() for table in kind.compared(sides)]


def sides_table(sides: Sequence[Group]) -> Table:
    """Build the table of the compared groups and facts of their machines."""
    columns = [
        SIDE, Column("machine", "Machine", reason=lambda row: "not recorded"), Column("num_runs", "Runs", fmt.number),
        Column("num_cases", "Cases", fmt.number), Column("torch", "PyTorch", reason=lambda row: "not recorded"),
        Column("origin", "Record", unbroken=True),
    ]  # fmt: skip
    return table(side_facts(sides), "Groups of runs; the first is the baseline", columns)


def ratio_table(
    sides: Sequence[Group], by: str, num_rows: int | None = None, only: Places | None = None
) -> Table | None:
    """Build the table of times against the baseline's at one of `LEVELS`; None if nothing was timed at that level.

    Args:
        sides: the groups of runs, the baseline first.
        by: level of the comparison.
        num_rows: maximum number of rows of each case, longest times first; None for all.
        only: these cases and groups; None for all.
    """
    frame = ratios(sides, by, None if only is None else frozenset(case for case, _ in only))
    if only is not None:
        frame = of_places(frame, only)
    untimed = frame[frame["base_s"].isna() & frame["time_s"].isna()]
    frame = frame.drop(untimed.index)
    if frame.empty:
        return None
    whole = f"charact compare --by {by} --to FILE.csv"
    frame, left_out = (frame, "") if num_rows is None else top(frame, num_rows, whole)
    judged, not_judged = _judgement(frame)
    named = [] if by == "case" else [Column(by, LEVELS[by].capitalize(), wide=by in _WIDE)]
    columns = [
        CASE, *named, *side_column(sides),
        Column("base_s", sides[0].label, fmt.seconds, "time of the baseline", reason),
        Column("time_s", candidate(sides), fmt.seconds, "time of the candidate", reason),
        Column("ratio", "Ratio", exact_ratio, "time / baseline’s: below 1 is faster", reason), *judged,
    ]  # fmt: skip
    without = "; ".join(dict.fromkeys(f"{row.case} {fmt.missing(reason(row))}" for row in fmt.rows(untimed)))
    notes = [_of_what(sides) if by == "case" else "", not_judged,
             f"Without times: {without}." if without else "", left_out]
    judged_rows = with_verdicts(frame, disturbed=frozenset(disturbed_cases(sides)["case"]),
                                by_turns=sides[0].turns is not None)  # fmt: skip
    notes.append(_AGAIN if (judged_rows["verdict"] == INCONCLUSIVE).any() else "")
    return table(judged_rows, f"Times by {LEVELS[by]}", columns, " ".join(filter(None, notes)))


def _of_what(sides: Sequence[Group]) -> str:
    """Return what the times of the compared kinds of cases are; empty if it is not known."""
    kinds = {entry.get("kind") for side in sides for run in side.runs for entry in run.manifest["cases"]}
    found = [words for kind, words in _OF_WHAT.items() if kind in kinds]
    return f"A time is {', or '.join(found)}." if found else ""


def metric_table(sides: Sequence[Group]) -> Table | None:
    """Build the table of throughput, memory, accuracy, energy and totals; None if no two groups share one."""
    frame = metric_ratios(sides)
    shared = (frame["base"].notna() & frame["value"].notna()).groupby(frame["metric"]).transform("any")
    frame = frame[(frame["metric"] != "time") & shared & (frame["value"].notna() | frame["base"].notna())]
    if frame.empty:
        return None
    words = [[metric_text.value(row.metric, number, reason(row)) for number in (row.base, row.value)]
             for row in fmt.rows(frame)]
    frame[["base_text", "value_text"]] = pd.DataFrame(words, index=frame.index)
    frame["metric"] = frame["metric"].map(metric_text.label)
    disturbed = frozenset(disturbed_cases(sides)["case"])
    frame = with_verdicts(frame, ("higher", "lower"), disturbed, by_turns=sides[0].turns is not None)
    alike = (frame["base_text"] == frame["value_text"]) & (frame["ratio"] != 1) & frame["significant"]
    frame.loc[alike, "verdict"] = "equal, as rounded"
    judged, note = _judgement(frame)
    columns = [
        CASE, Column("metric", "Metric", unbroken=True), *side_column(sides),
        Column("base_text", sides[0].label, unbroken=True), Column("value_text", candidate(sides), unbroken=True),
        Column("ratio", "Ratio", exact_ratio, "value / baseline’s", reason), *judged,
    ]  # fmt: skip
    return table(frame, "Throughput, memory, accuracy and energy", columns, note)


def unmatched_table(sides: Sequence[Group]) -> Table | None:
    """Build the table of cases without a counterpart, and how the nearest case differs."""
    columns = [CASE, SIDE, Column("missing_in", "Missing in", unbroken=True), Column("why", "Nearest case there")]
    return _filled(unmatched_cases(sides), "Cases without a counterpart", columns)


def failed_table(sides: Sequence[Group]) -> Table | None:
    """Build the table of failed cases."""
    columns = [SIDE, CASE, Column("status", "Status"), Column("reason", "Reason", reason=lambda row: "none recorded")]
    return _filled(failed_cases(sides), "Cases that failed", columns)


def disturbed_table(sides: Sequence[Group]) -> Table | None:
    """Build the table of cases whose times are too long because of other programs."""
    columns = [SIDE, CASE, Column("num_runs", "Disturbed runs", fmt.number),
               Column("disturbance", "Disturbed by", None, "in the run that lost most")]
    return _filled(disturbed_by_case(sides), "Cases that other programs disturbed", columns)


def context_table(sides: Sequence[Group]) -> Table | None:
    """Build the table of options, versions and facts of machines that differ."""
    if len(sides) == 1:
        return None
    changes = [(side, context_changes(sides[0], side)) for side in sides[1:]]
    # A published table does not have most facts.
    frame = pd.concat([(facts.dropna() if len(published_notes([sides[0], side])) else facts).assign(side=side.label)
                       for side, facts in changes])
    labels = {side.label for side in sides}  # groups may have the names of their scripts
    frame = frame[(frame["fact"] != "options.script") | ~frame["base"].isin(labels) | ~frame["new"].isin(labels)]
    frame["fact"] = frame["fact"].str.replace(".", " ").str.replace("_", " ")
    columns = [Column("fact", "Fact", unbroken=True), *side_column(sides),
               Column("base", sides[0].label, reason=lambda row: "not recorded"),
               Column("new", candidate(sides), reason=lambda row: "not recorded")]  # fmt: skip
    return _filled(frame, "What else differs", columns)


def _filled(frame: pd.DataFrame, caption: str, columns: list[Column]) -> Table | None:
    return table(frame, caption, columns) if len(frame) else None


def _other(sides: Sequence[Group]) -> str:
    return sides[1].label if len(sides) == 2 else "Group’s"


def _judgement(frame: pd.DataFrame) -> tuple[list[Column], str]:
    """Return the columns of interval and verdict; without any interval none, and a note with the reason."""
    if frame["low"].notna().any() or frame["significant"].any():
        return [INTERVAL, _VERDICT], ""
    reasons = frame.loc[frame["ratio"].notna(), "reason"].dropna().unique()
    return [], f"Intervals: {fmt.missing('; '.join(reasons))}." if len(reasons) else ""


def with_verdicts(frame: pd.DataFrame, verdicts: tuple[str, str] = ("slower", "faster"),
                  disturbed: Collection[str] = (), *, by_turns: bool = False) -> pd.DataFrame:
    """Return a frame of ratios with its intervals as text, and the column verdict.

    Args:
        frame: of ratios.
        verdicts: words for above 1 and below 1.
        disturbed: cases that other programs disturbed, in which no difference shown means nothing.
        by_turns: whether the runs were measured by turns, so that `SAME` is a verdict.
    """
    rows = list(fmt.rows(frame))
    found = [_verdict(row, verdicts, by_turns) for row in rows]
    found = [INCONCLUSIVE if verdict in (_NO_DIFFERENCE, NOT_BY_RANKS) and row.case in disturbed else verdict
             for row, verdict in zip(rows, found, strict=True)]
    return frame.assign(interval=[interval(row, 4) for row in rows], verdict=found)


def significant_verdict(row: Any, verdicts: tuple[str, str]) -> str | None:
    """Return the verdict (above 1, below 1) of a significant ratio; `DIFFERS` between single runs, None for others."""
    if not row.significant:
        return None
    if row.reason == ONE_RUN_EACH:
        return DIFFERS
    return verdicts[0] if row.ratio > 1 else verdicts[1]


def _verdict(row: Any, verdicts: tuple[str, str], by_turns: bool) -> str:
    if found := significant_verdict(row, verdicts):
        return found
    if pd.isna(row.low):
        return "equal" if row.ratio == 1 else "not judged"
    if by_turns and decision(row) == "same":
        return SAME
    return _NO_DIFFERENCE if row.low <= 1 <= row.high else NOT_BY_RANKS
