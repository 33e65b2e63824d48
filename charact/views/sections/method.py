"""The last section: how numbers were taken, what ended each case, and what is not there and why."""

from typing import Any

import pandas as pd

from charact.analysis.common.pass_status import pass_outcomes, pass_reason, passes_taken, stop_rules, was_asked_for
from charact.analysis.common.script_attribution import dropped, is_imported, is_watched
from charact.analysis.memory.composition import is_memory_run
from charact.analysis.profile.breakdown import operator_coverage
from charact.analysis.profile.case_summary import case_summary
from charact.record.reader import Run
from charact.views.html.elements.blocks import CASE, Block, Body
from charact.views.section import Section, all_sections
from charact.views.tables import format as fmt
from charact.views.tables.model import Column, table


def method(run: Run) -> Body:
    """Where each number comes from, what ended each case, what it missed, and what is not there."""
    kinds = set(case_summary(run)["kind"])
    taken, imported = passes_taken(run), is_imported(run)
    declared = [section.trace_points if imported else section.points for section in all_sections()]
    points = [point for by_pass in declared for name, of_pass in by_pass.items() if name in taken for point in of_pass]
    blocks = {"timing": _stops, "operators": _coverage, "flop": _uncounted}
    if imported:  # a trace says how many iterations it has where it says how phases were found
        del blocks["timing"]
    profiled = [block for name, block in blocks.items() if "profile" in kinds and was_asked_for(run, name)]
    blocks_of_all = [*_dropped(run), *([_missing(run)] if kinds else [])]
    return Body(points=points, blocks=[*(block(run) for block in profiled), *blocks_of_all])


def _stops(run: Run) -> Block:
    rules = stop_rules(run).dropna(subset=["num_iterations"])
    title = "What ended each case"
    if rules.empty:
        return Block(title=title, note=fmt.missing("no case was timed"))
    for column in ("warmup_ended_by", "ended_by"):
        rules[column] = rules[column].map(lambda value: fmt.ENDED_BY.get(value, value))

    def untimed(row: Any) -> str | None:
        few = "no precision was asked for" if pd.isna(row.precision_target_frac) else "fewer than 6 iterations"
        return pass_reason(run, row.case, "timing") or few

    def unprofiled(row: Any) -> str | None:
        return pass_reason(run, row.case, "operators")

    precision = [
        Column("interval_frac", "± interval", fmt.share, "half of the 95 % interval over the median", untimed),
        Column("precision_target_frac", "Target", fmt.share, "the half interval asked for", untimed),
    ]  # fmt: skip
    first = "how much longer the first iteration took than the median one"
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
        meaning = "iteration under the profiler / iteration without; below 1 the machine got faster between the passes"
        columns.append(Column("overhead_ratio", "Profiler overhead", fmt.ratio, meaning, unprofiled))
    return Block(title=title, table=table(rules, "Stop rule of each case", columns))


def _coverage(run: Run) -> Block:
    coverage = operator_coverage(run)
    title = "How much operator time has a known type"
    if coverage.empty:
        return Block(title=title, note=fmt.missing("no case has operators"))
    columns = [
        CASE, Column("time_s", "Operator time", fmt.seconds, "per iteration, under the profiler"),
        Column("other_s", "Of type ‘other’", fmt.seconds, "no rule knows these operators"),
        Column("coverage_frac", "Known", fmt.share, "share of the operator time"),
    ]  # fmt: skip
    return Block(title=title, table=table(coverage, "Coverage of operator types", columns))


def _uncounted(run: Run) -> Block:
    names = {
        name for entry in run.manifest["cases"] for name in entry.get("passes", {}).get("flop", {}).get("uncounted", [])
    }
    note = ", ".join(sorted(names)) or "None: each that was counted has a formula."
    return Block(title="Heavy operators whose FLOP have no formula", note=note)


def _dropped(run: Run) -> list[Block]:
    rows = dropped(run)
    columns = [
        CASE, Column("what", "Dropped"), Column("num_dropped", "Number", fmt.number), Column("reason", "Reason"),
    ]  # fmt: skip
    title = "What the trace holds and the record does not"
    return [Block(title=title, table=table(rows, "Dropped from the trace", columns))] if len(rows) else []


def _missing(run: Run) -> Block:
    outcomes = pass_outcomes(run).query("status != 'ok'")
    title = "What is not here, and why"
    if outcomes.empty:
        return Block(title=title, note="Every pass over every case ended well.")
    groups = outcomes.groupby(["case", "status", "reason"], sort=False, dropna=False, as_index=False)
    outcomes = groups.agg(passes=("pass", ", ".join))
    if is_memory_run(run):  # most sizes of a sweep are only predicted
        outcomes = _joined(outcomes)
    columns = [
        CASE, Column("passes", "Passes"), Column("status", "Status"),
        Column("reason", "Reason", reason=lambda row: "no reason recorded"),
    ]  # fmt: skip
    return Block(title=title, table=table(outcomes, "Passes that gave nothing", columns))


def _joined(outcomes: pd.DataFrame) -> pd.DataFrame:
    """One row for all cases that lack the same for the same reason, which names the first of them."""
    groups = outcomes.groupby(["passes", "status", "reason"], sort=False, dropna=False, as_index=False)
    joined = groups.agg(case=("case", "first"), others=("case", "size"))
    more = [f" and {others - 1} more" if others > 1 else "" for others in joined["others"]]
    return joined.assign(case=joined["case"] + pd.Series(more, dtype="str"))


SECTION = Section("method", "Method", 220, method)
