"""The section Counters: samples over time, values by source, and sources without values."""


import pandas as pd

from charact.analysis.common.pass_status import passes_taken
from charact.analysis.common.script_attribution import is_imported
from charact.analysis.efficiency import utilization
from charact.analysis.efficiency.counters import (
    counter_meaning,
    counter_ranges,
    counter_sources,
    counter_spans,
    counter_timeline,
    counter_values,
    counters_by_phase,
    missing_counters,
)
from charact.record.reader import Run
from charact.views.document import Block, Body, Item, Line
from charact.views.figures import counters as counter_figures
from charact.views.html.elements.blocks import CASE, PHASE, by_first_case, legend_of, missing_cases, why_nothing
from charact.views.section import Section
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.counter_text import busy, counter_name, counter_value, energy, power
from charact.views.tables.model import Column, table

_OF_PASS = (
    "Counters are read during separate iterations after the timing pass. Sources that slow "
    "kernels or lock clocks have iterations of their own. Sampled counters are shown as the mean of their samples."
)
_OF_TIMING = "Read before and after the iterations of the timing pass, at no cost to them."
_OF_TRACE = "Activity of each device from its first kernel, copy or fill in the trace to its last."
_PANELS = " Panels over time reach from 0 to the counter’s largest value, for shares to 100 %."
_READ = [
    Column("device", "Device", unbroken=True), Column("name", "Counter", unbroken=True),
    Column("value_words", "Value", unbroken=True),
]  # fmt: skip
_SAMPLES = Column("num_samples", "Samples", fmt.number, "in the mean", lambda row: "read once")
_MEANS = "The figure shows means of successive samples; the ranges are of single samples. "
_COARSE = "A sample covers the time since the previous one, possibly in another phase."
_NUM_UNFOLDED = 2
"""Largest number of cases whose timelines are unfolded, to limit scrolling."""


def _html(run: Run) -> Body:
    taken = "counters" in passes_taken(run)
    lead = _OF_TRACE if is_imported(run) else _OF_PASS if taken else _OF_TIMING
    values, unread = counter_values(run), _unread(run)
    if values.empty:
        return Body(blocks=[Block(note=why_nothing(run, "counters")), *unread])
    timeline, spans, ranges = counter_timeline(run), counter_spans(run), counter_ranges(run)
    cases = [str(case) for case in ranges["case"].unique()]
    timelines = [_timeline(case, *(frame[frame["case"] == case] for frame in (timeline, spans, ranges)),
                           folded=len(cases) > _NUM_UNFOLDED) for case in cases]
    return Body(lead=f"{lead}{_PANELS if timelines else ''}", blocks=[
        *timelines, _by_source(run, values), *_by_phase(run), *unread,
        *missing_cases(run, "counters", values["case"]),
    ])  # fmt: skip


def _timeline(case: str, samples: pd.DataFrame, spans: pd.DataFrame, ranges: pd.DataFrame, *, folded: bool) -> Block:
    """Return a block with a figure for each sampled source and device of a case."""
    at_zero = (ranges["lowest"] == 0) & (ranges["highest"] == 0)
    moving = samples.merge(ranges.loc[~at_zero, ["source", "device", "counter"]])
    end_s = max(samples["time_s"].max(), spans["end_s"].max() if len(spans) else 0.0)
    figures = [
        counter_figures.timeline(str(source), str(device), rows, spans, end_s)
        for (source, device), rows in moving.groupby(["source", "device"], sort=False)
    ]
    zero = ", ".join(f"{counter_name(row.counter)} ({row.source})" for row in fmt.rows(ranges[at_zero]))
    zero = f"Always 0: {zero}." if zero else ""
    means = _MEANS if ranges["num_samples"].max() > counter_figures.MAX_DRAWN else ""
    columns = [
        Column("source", "Source"), Column("device", "Device"), Column("name", "Counter"),
        Column("lowest_words", "Lowest"), Column("mean_words", "Mean"), Column("highest_words", "Highest"),
        Column("num_samples", "Samples", fmt.number),
    ]  # fmt: skip
    title = f"Over time: {case}"
    return Block(
        title="" if folded else title, case=case, figures=figures, folded=folded,
        legend=legend_of(spans["phase"], palette.PHASES) if figures else [],
        table=table(_in_words(ranges, "lowest", "mean", "highest"), title, columns),
        note="" if folded else f"{means}{zero}".strip(),
    )  # fmt: skip


def _in_words(rows: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Add each counter's name, and the values of columns as text."""
    texts = {
        f"{column}_words": [counter_value(*pair) for pair in zip(rows["counter"], rows[column], strict=True)]
        for column in columns
    }
    return rows.assign(name=rows["counter"].map(counter_name), **texts)


def _by_source(run: Run, values: pd.DataFrame) -> Block:
    """Return a table of all values read over the pass, by source, with their definition."""
    meanings = [counter_meaning(run, *pair) for pair in zip(values["source"], values["counter"], strict=True)]
    texts = {name: [meaning.get(name) for meaning in meanings] for name in ("method", "scope", "definition")}
    rows = _in_words(values, "value").join(pd.DataFrame(texts, index=values.index))
    order = {source: number for number, source in enumerate(rows["source"].unique())}
    rows = rows.sort_values("source", key=lambda sources: sources.map(order), kind="stable")
    columns = [
        Column("source", "Source"), CASE, *_read(rows),
        *(Column(name, name.capitalize(), reason=lambda row: "not recorded", wide=name != "method") for name in texts
          if rows[name].notna().any()),
    ]  # fmt: skip
    # an imported trace has no other counters
    return Block(folded=not is_imported(run), table=table(rows, "All values, by source", columns))


def _read(values: pd.DataFrame) -> list[Column]:
    """Return the columns of values, with the number of samples if there are any."""
    return [*_READ, _SAMPLES] if values["num_samples"].notna().any() else _READ


def _by_phase(run: Run) -> list[Block]:
    values = counters_by_phase(run)
    columns = [CASE, PHASE, Column("source", "Source"), *_read(values)]
    note = _COARSE if values["num_samples"].notna().any() else ""
    return [Block(folded=True, table=table(_in_words(values, "value"), "Values by phase", columns), note=note)] \
        if len(values) else []


def _unread(run: Run) -> list[Block]:
    """Return the sources without values, with reason and remedy, and the counters that a source did not provide."""
    blocks: list[Block] = []
    if len(sources := counter_sources(run).query("status != 'ok'")):
        columns = [
            CASE, Column("source", "Source"), Column("status", "Status"), Column("reason", "Reason"),
            Column("remedy", "Remedy", reason=lambda row: "none is known"),
        ]  # fmt: skip
        rows = by_first_case(sources, "source", "status", "reason", "remedy")
        blocks.append(Block(folded=True, table=table(rows, "Sources without values", columns)))
    if len(missing := missing_counters(run)):
        columns = [CASE, Column("source", "Source"), Column("name", "Counter", unbroken=True),
                   Column("reason", "Reason")]
        rows = by_first_case(missing, "source", "counter", "reason")
        rows["name"] = rows["counter"].map(counter_name)
        blocks.append(Block(folded=True, table=table(rows, "Counters that a source did not provide", columns)))
    return blocks


def _summary(run: Run, case: str) -> list[Item]:
    """Return utilization of processor and device, power, and energy per iteration; none if not measured."""
    used, spent = (frame[frame["case"] == case] for frame in (utilization.busy(run), utilization.energy(run)))
    parts = [busy(row) for row in fmt.rows(used)]
    for row in fmt.rows(spent):
        of = f"{row.device} " if len(spent) > 1 else ""  # one device's value may be missing: no sum is shown
        if pd.notna(row.power_w):
            parts.append(f"{of}{power(row.power_w)}")
        if pd.notna(row.energy_per_iteration_j):
            parts.append(f"{energy(row.energy_per_iteration_j)} an iteration")
    return [Line(", ".join(parts))] if parts else []


SECTION = Section("counters", "Counters", 200, _html,
                  shows=lambda run: len(run.counters) > 0 or "counters" in passes_taken(run), summary=_summary,
                  points={"counters": [
    ("Counters", "counter pass: read before and after separate iterations, and from a sampler thread in "
     "between. Sources that replay kernels or lock clocks have separate passes without timing."),
]})
