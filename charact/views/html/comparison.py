"""The sections of a comparison: groups of runs, ratios, speedups, what explains differences, and cases left out."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from charact.analysis.compare import Group, matched_cases, ratios
from charact.analysis.compare.differences import operator_steps, phase_steps
from charact.analysis.compare.group_facts import published_notes
from charact.analysis.compare.ratios import phases_by_side
from charact.analysis.compare.selection import in_pair, most_different, of_places, read_parts
from charact.views.document import Answer, Block, Body, Card, Number
from charact.views.figures import comparison as figures
from charact.views.html.elements.blocks import legend_of
from charact.views.tables import comparison_tables as tables
from charact.views.tables import difference_tables, palette
from charact.views.tables import format as fmt
from charact.views.tables.case_names import common_facts
from charact.views.tables.comparison_answers import (
    factor,
    ignored_sentence,
    interval_text,
    judged_cases,
    sentence,
    speed_text,
    throughput,
    turns_sentence,
    verdict_counts,
)
from charact.views.tables.comparison_speedups import speedup_tables
from charact.views.tables.model import Column, Table, limited, table

MAX_PLACES = 24
"""Maximum number of cases and groups that are drawn, largest differences first; tables of times have all."""
MAX_CARDS = 4
"""Maximum number of cards, largest differences first."""
MAX_ROWS = 2000
"""Maximum number of rows of one table, so that a browser scrolls fast."""
_NUM_TOP = 25
_PARTS = ("operator_type", "operator", "layer", "kernel", "problem", "layer_type", "brick")


def comparison(sides: Sequence[Group]) -> Body:
    """Build the section: the groups, times of each case with their ratios, speedups and other metrics."""
    disturbed = tables.disturbed_table(sides)
    caveats = [ignored_sentence(sides), tables.single_run_note(sides), turns_sentence(sides)]
    blocks = _times(sides)
    if disturbed is not None:
        caveats.insert(0, "Other programs disturbed runs, whose times are too long: see the table below.")
        blocks.append(_block(disturbed.caption, disturbed))
    blocks += [Block(table=tables.sides_table(sides), folded=True), *_notes(sides)]
    blocks += [replace(_block("", each), folded=True) for each in speedup_tables(sides)]
    blocks += [_block(each.caption, each) for each in tables.tables_of_kinds(sides)]
    if metrics := tables.metric_table(sides):
        blocks.append(_block("Throughput, memory, accuracy, energy", metrics))
    if facts := common_facts([case for side in sides for run in side.runs for case in run.manifest["cases"]]):
        caveats.append(f"All cases: {', '.join(facts)}.")
    sentence, caveat = _headline(sides), " ".join(filter(None, caveats)).removesuffix(".")
    return Body(answer=Answer(sentence, more=caveat) if sentence else None, lead="" if sentence else caveat,
                cards=_cards(sides), blocks=blocks)


def _headline(sides: Sequence[Group]) -> str:
    """Return the result of the only case, or how many cases have each verdict; empty without a ratio."""
    judged = judged_cases(sides)
    if len(judged) == 1:
        text = sentence(next(fmt.rows(judged)), sides)
        return f"{text.replace('no ', 'No ', 1) if text.startswith('no ') else text}."
    return f"Of {len(judged):,} cases against {sides[0].label}: {verdict_counts(judged)}." if len(judged) else ""


def _cards(sides: Sequence[Group]) -> list[Card]:
    """Return a card for each of the cases whose times differ most."""
    only, _ = most_different(sides, MAX_CARDS)
    return [_card(row, sides) for row in fmt.rows(of_places(judged_cases(sides), only))]


def _card(row: Any, sides: Sequence[Group]) -> Card:
    base = sides[0].label
    interval = interval_text(row) or fmt.missing(row.reason)
    answer = sentence(row, sides).removeprefix(f"{row.verdict}: ")
    times = f"{fmt.seconds(row.time_s)} in {row.side}, {fmt.seconds(row.base_s)} in {base}"
    rate = throughput(row, sides)
    if rate is not None:
        headline = Number(f"the samples/s of {base}", f"{factor(rate.ratio)}×")
    elif row.verdict in ("faster", "slower", tables.DIFFERS):
        headline = Number(f"than {base}", speed_text(row))
    else:
        headline = Number(f"against {base}", "no difference shown")
    return Card(row.case, headline=headline, details=[interval, times] if rate is None else [times],
                verdict=row.verdict, advice=[answer], several=True)  # fmt: skip


def _block(title: str, shown: Table) -> Block:
    return Block(title=title, table=limited(shown, MAX_ROWS, "charact compare --to FILE.csv"))


def left_out_places(num_left: int) -> str:
    """Return a note on the number of cases that are not drawn; empty if all are."""
    if not num_left:
        return ""
    return (f"Figures show the {MAX_PLACES} of {MAX_PLACES + num_left:,} cases that differ most; {num_left:,} are left "
            "out: compare fewer runs to see them.")


def _notes(sides: Sequence[Group]) -> list[Block]:
    points = [(row.side, row.note) for row in fmt.rows(published_notes(sides))]
    return [Block(title="Published tables", points=points)] if points else []


def _times(sides: Sequence[Group]) -> list[Block]:
    if matched_cases(sides).empty:
        return [Block(note="These groups have no case in common: the differences are below.")]
    shown, frame = tables.ratio_table(sides, "case"), ratios(sides, "case")
    if shown is None:
        return []
    if not frame["ratio"].notna().any():
        return [_block("Times", shown)]
    only, num_left = most_different(sides, MAX_PLACES)
    frame = of_places(frame, only)
    colors = figures.side_colors([side.label for side in sides[1:] if side.label in set(frame["side"])])
    figure = figures.ratio_intervals(frame, colors)
    every = replace(_block("Times", shown), title="", folded=True)
    note = "Times are medians of a run, and over several runs their geometric mean; below 1 is faster."
    if len(frame) == 1:  # the card has it all
        return [every]
    return [Block(figures=[figure], legend=list(colors.items()), note=f"{note} {left_out_places(num_left)}".strip()),
            every]


def parts(sides: Sequence[Group]) -> Body:
    """Build the section: times by phase, operator type, operator, layer, kernel, problem, layer type and brick."""
    blocks = []
    only, num_left = most_different(sides, MAX_PLACES)
    cases = {case for case, _ in only}
    read_parts(sides, ["phase", *_PARTS], cases)
    times = phases_by_side(sides, cases)
    times = of_places(times, only | {(case, sides[0].label) for case in cases})
    by_phase = tables.ratio_table(sides, "phase", only=only)
    for case, rows in times.groupby("case", sort=False):
        columns = [Column("side", "Group"), Column("phase", "Phase"), Column("time_s", "Time", fmt.seconds)]
        blocks.append(Block(
            title=str(case), case=str(case), figures=[figures.side_phases(rows)],
            legend=legend_of(rows["phase"], palette.PHASES), table=table(rows, f"Phases of {case}", columns),
        ))  # fmt: skip
    shown = [by_phase, *(tables.ratio_table(sides, by, _NUM_TOP, only) for by in _PARTS)]
    blocks += [Block(table=each, folded=True) for each in shown if each is not None]
    lead = "Phases of a bar sum to the median iteration; the ratios below use each part’s own times."
    return Body(lead=f"{lead} {left_out_places(num_left)}".strip(), blocks=blocks)


def left_out(sides: Sequence[Group]) -> Body:
    """Build the section: cases without a counterpart, failed cases, and other differences."""
    found = [tables.unmatched_table(sides), tables.failed_table(sides), tables.context_table(sides)]
    nothing = "Every case has a counterpart, none failed, and no option, version or machine differs."
    blocks = [_block(each.caption, each) for each in found if each is not None]
    return Body(blocks=blocks or [Block(note=nothing)])


_LEAD = (
    "From the baseline’s median iteration to the candidate’s, step by step: slower steps point to the right. Steps "
    "sum to the difference of the medians. Operators are shares of their phases under the profiler, scaled to the "
    "phases’ times; the rest of a phase is “outside operators”. The profiler lengthens short operators most: where one "
    "group calls very many, its other operators seem shorter than they are."
)


def explanations(sides: Sequence[Group]) -> Body:
    """Build the section: steps that account for the difference of each matched case."""
    columns = []
    places, num_left = most_different(sides, MAX_PLACES)
    for side in sides[1:]:
        cases = in_pair(sides, side, {case for case, label in places if label == side.label})
        for each in difference_tables.explanations(sides[0], side, cases) if cases else []:
            title = f"{each.case}: {side.label}" if len(sides) > 2 else each.case
            columns += [_blocks(each, title, (sides[0].label, side.label))] if each.tables else []
    if not columns:
        return Body(blocks=[Block(note="No case was timed in both groups.")])
    # The page draws two cases side by side: first what is drawn of each, then its tables.
    blocks = [block for row in zip_longest(*columns) for block in row if block is not None]
    if len(columns) == 1:
        blocks = [replace(block, case=None) for block in blocks]
    return Body(lead=f"{_LEAD} {left_out_places(num_left)}".strip(), blocks=blocks)


def _blocks(each: "difference_tables.Explanation", title: str, labels: tuple[str, str]) -> list[Block]:
    steps = {"Phases": phase_steps(each.rows), "Operators": operator_steps(each.rows)}
    drawn = [figures.waterfall(f"{what} of {title}", rows, labels) for what, rows in steps.items() if len(rows)]
    note = "" if each.significant else "This difference is not significant: the steps may be noise."
    first, *others = each.tables
    return [Block(title=title, case=each.case, figures=drawn, table=first, note=note),
            *(Block(case=each.case, table=table, folded=True) for table in others)]
