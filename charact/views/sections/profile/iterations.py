"""The section Iterations: the time of each iteration in order, slow ones with their causes, and the distribution."""

import pandas as pd

from charact.analysis.profile.case_summary import case_summary, slow_iterations
from charact.analysis.profile.iteration_series import (
    MEMORY_OF_RUN,
    distribution,
    iteration_series,
    memory_changes,
    memory_over_run,
    thinned,
)
from charact.record.reader import Run
from charact.record.schema import PHASES
from charact.views.document import Block, Body
from charact.views.figures import iterations as figures
from charact.views.html.elements.blocks import legend_of
from charact.views.section import Section, body_of
from charact.views.sections.profile._shared import has_phases, slow_text
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.model import Column, Table, table

_NUM_ROWS = 40
"""Maximum number of rows of a case's table."""
_MIN_ITERATIONS = 3
"""Minimum number of timed iterations of a case for its figures."""


def _html(run: Run) -> Body:
    series = iteration_series(run)
    slow = {row.case: f"{slow_text(row)}." for row in slow_iterations(run).itertuples()}
    summary = case_summary(run).set_index("case")[["median_s", "p95_s"]].to_dict("index")
    blocks = []
    for name, rows in series.groupby("case", sort=False):
        case, timed = str(name), rows[rows["kind"] == "timed"]
        if len(timed) < _MIN_ITERATIONS:
            continue
        of_case = summary[case]
        quantiles = {label: float(of_case[column]) for label, column in (("median", "median_s"), ("95 %", "p95_s"))
                     if pd.notna(of_case[column])}
        phases = [phase for phase in PHASES if (rows[phase] > 0).any()]
        blocks.append(Block(
            title=case, case=case, legend=legend_of(phases, palette.PHASES), note=slow.get(case, ""),
            table=_table(case, thinned(rows, _NUM_ROWS), phases),
            figures=[figures.series(f"Time of each iteration of {case}", thinned(rows, figures.NUM_COLUMNS)),
                     figures.distribution(f"Distribution of iteration times of {case}",
                                          distribution(timed["wall_s"], figures.NUM_COLUMNS), quantiles)],
        ))  # fmt: skip
    blocks += _memory(run)
    lead = "Each iteration by phase, in order. A triangle marks a slow one, in the color of the phase that was longer."
    return body_of(run, "timing", lead, blocks, series["case"]) if blocks else Body()


def _table(case: str, rows: pd.DataFrame, phases: list[str]) -> Table:
    """Build the table of a case's iterations; a row of several has their mean."""
    places = [str(row.first) if row.first == row.last else f"{row.first}–{row.last}" for row in fmt.rows(rows)]
    columns = [
        Column("place", "Iterations"), Column("kind", "Kind", meaning="warm-up and passes do not count"),
        Column("wall_s", "Time", fmt.seconds, "mean of the row’s iterations"),
        Column("slowest_s", "Slowest", fmt.seconds),
        *(Column(phase, phase, fmt.seconds, "mean of the row’s iterations") for phase in phases),
        Column("slow_phase", "Slow in", None, "phase that exceeds its median most in a slow iteration",
               lambda row: "no slow iteration"),
    ]  # fmt: skip
    return table(rows.assign(place=places), f"Iterations of {case}", columns)


def _memory(run: Run) -> list[Block]:
    """Return the memory of a watched program over its run; nothing if it was not sampled."""
    changes = memory_changes(run)
    if changes.empty:
        return []
    columns = [Column("memory", "Memory"), Column("first_bytes", "First", fmt.num_bytes),
               Column("last_bytes", "Last", fmt.num_bytes), Column("peak_bytes", "Largest", fmt.num_bytes)]
    sampled = memory_over_run(run, figures.NUM_SAMPLES)
    return [Block(title="Memory over the run", figures=[figures.memory_over_run(sampled, MEMORY_OF_RUN)],
                  table=table(changes, "Memory of the program over its run", columns))]


SECTION = Section("iterations", "Iterations", 45, _html, shows=lambda run: has_phases(run) and _has_several(run))


def _has_several(run: Run) -> bool:
    series = iteration_series(run)
    return bool((series[series["kind"] == "timed"].groupby("case").size() >= _MIN_ITERATIONS).any())
