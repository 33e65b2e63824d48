"""The section Method: how numbers were measured, what ended each case, and what is missing and why."""

from typing import Any

import pandas as pd

from charact.analysis.common.pass_status import pass_outcomes, pass_reason, passes_taken, stop_rules, was_asked_for
from charact.analysis.common.script_attribution import dropped, is_imported, is_watched
from charact.analysis.memory.composition import is_memory_run
from charact.analysis.profile.breakdown import operator_coverage
from charact.analysis.profile.case_summary import case_summary
from charact.analysis.profile.compilations import compile_events
from charact.record.reader import Run
from charact.views.document import Block, Body
from charact.views.html.elements.blocks import CASE, by_first_case
from charact.views.section import Section, all_sections
from charact.views.tables import format as fmt
from charact.views.tables.model import Column, table


def _html(run: Run) -> Body:
    """Return sources of the numbers, stop rules, coverage, and missing passes with reasons."""
    kinds = set(case_summary(run)["kind"])
    taken, imported = passes_taken(run), is_imported(run)
    declared = [section.trace_points if imported else section.points for section in all_sections()]
    points = [point for by_pass in declared for name, of_pass in by_pass.items() if name in taken for point in of_pass]
    blocks: list[Block] = []
    if "profile" in kinds and was_asked_for(run, "timing") and not imported:  # another section has a trace's number
        blocks.append(_stops(run))
    if "profile" in kinds and len(events := compile_events(run)):
        blocks.append(_compilations(events))
    if "profile" in kinds and was_asked_for(run, "operators"):
        blocks.append(_coverage(run))
    if "profile" in kinds and was_asked_for(run, "flop"):
        names = {name for entry in run.entries for name in entry.passes.flop.uncounted}
        blocks.append(Block(title="Heavy operators without a FLOP formula",
                            note=", ".join(sorted(names)) or "None: every counted operator has a formula."))
    if len(lost := dropped(run)):
        columns = [CASE, Column("what", "Dropped"), Column("num_dropped", "Number", fmt.number),
                   Column("reason", "Reason")]
        source = "snapshot" if "snapshot" in taken else "trace"
        blocks.append(Block(title=f"Data of the {source} that the record leaves out",
                            table=table(lost, f"Dropped from the {source}", columns)))
    return Body(points=points, blocks=[*blocks, *([_missing(run)] if kinds else [])])


def _stops(run: Run) -> Block:
    rules = stop_rules(run).dropna(subset=["num_iterations"])
    title = "What ended each case"
    if rules.empty:
        return Block(title=title, note=fmt.missing("no case was timed"))
    for column in ("warmup_ended_by", "ended_by"):
        rules[column] = rules[column].map(lambda value: fmt.ENDED_BY.get(value, value))

    def untimed(row: Any) -> str | None:
        few = "no target was set" if pd.isna(row.precision_target_frac) else "fewer than 6 iterations"
        return pass_reason(run, row.case, "timing") or few

    def unprofiled(row: Any) -> str | None:
        return pass_reason(run, row.case, "operators")

    precision = [
        Column("interval_frac", "± interval", fmt.share, "half of the interval of order statistics over the median, "
               "by which measuring ended", untimed),
        Column("precision_target_frac", "Target", fmt.share, "requested half interval", untimed),
    ]  # fmt: skip
    first = "first iteration minus the median iteration"
    columns = [
        CASE,
        Column("num_warmup_iterations", "Warm-up", fmt.number, "iterations before timing, not recorded", untimed),
        Column("warmup_ended_by", "Warm-up ended", meaning="what ended the warm-up", reason=untimed),
        Column("num_iterations", "Iterations", fmt.number, "timed", untimed),
        Column("ended_by", "Ended by", meaning="'target met': the interval is narrow enough", reason=untimed),
        *(precision if rules["precision_target_frac"].notna().any() else []),
        Column("compile_s", "Compiling", fmt.seconds, "over the whole program" if is_watched(run) else first,
               lambda row: untimed(row) if pass_reason(run, row.case, "timing") else "not compiled"),
    ]  # fmt: skip
    if was_asked_for(run, "operators"):
        meaning = "iteration with the profiler / iteration without; below 1 the machine became faster in between"
        columns.append(Column("overhead_ratio", "Profiler overhead", fmt.ratio, meaning, unprofiled))
    return Block(title=title, table=table(rules, "Stop rule of each case", columns))


def _compilations(events: pd.DataFrame) -> Block:
    places: list[Any] = [None if pd.isna(row.file) else f"{row.file}:{row.line}" for row in fmt.rows(events)]
    columns = [
        CASE, Column("kind", "Event", meaning="a line that the compiler leaves out, or code compiled again"),
        Column("place", "Where", meaning="the line that breaks the graph or reads what changed, or the first line of "
               "the compiled function", reason=lambda row: "PyTorch names no line", unbroken=True),
        Column("text", "Line", reason=lambda row: "PyTorch names only the function"),
        Column("reason", "Why", meaning="PyTorch’s reason"),
        Column("num_times", "Times", fmt.number, "recompilations, or compilations that ended there"),
    ]  # fmt: skip
    title = "Graph breaks and recompilations"
    return Block(title=title, table=table(events.assign(place=places), f"{title} of torch.compile", columns))


def _coverage(run: Run) -> Block:
    coverage = operator_coverage(run)
    title = "Operator time with a known type"
    if coverage.empty:
        return Block(title=title, note=fmt.missing("no case has operators"))
    columns = [
        CASE, Column("time_s", "Operator time", fmt.seconds, "per iteration, under the profiler"),
        Column("other_s", "Of type ‘other’", fmt.seconds, "no rule matches these operators"),
        Column("coverage_frac", "Known", fmt.share, "share of the operator time"),
    ]  # fmt: skip
    return Block(title=title, table=table(coverage, "Coverage of operator types", columns))


def _missing(run: Run) -> Block:
    outcomes = pass_outcomes(run).query("status != 'ok'")
    title = "What is missing, and why"
    if outcomes.empty:
        return Block(title=title, note="Every pass of every case succeeded.")
    groups = outcomes.groupby(["case", "status", "reason"], sort=False, dropna=False, as_index=False)
    outcomes = groups.agg(passes=("pass", ", ".join))
    if is_memory_run(run):  # most sizes of a sweep are only estimated
        outcomes = by_first_case(outcomes, "passes", "status", "reason")
    columns = [
        CASE, Column("passes", "Passes"), Column("status", "Status"),
        Column("reason", "Reason", reason=lambda row: "no reason recorded"),
    ]  # fmt: skip
    return Block(title=title, table=table(outcomes, "Passes without a result", columns))


SECTION = Section("method", "Method", 220, _html, folded="How each number was measured")
