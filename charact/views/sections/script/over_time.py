"""The section Over time, for programs of many iterations: time of an iteration and memory, by windows of time."""

import pandas as pd

from charact.analysis.profile.window_series import thinned_windows, window_series
from charact.record.reader import Run
from charact.record.schema import PHASES
from charact.views.document import Block, Body
from charact.views.figures import windows as figures
from charact.views.html.elements.blocks import legend_of
from charact.views.section import Section
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.model import Column, Table, table

_NUM_ROWS = 40
"""Maximum number of rows of a case's table."""
_LEAD = (
    "All iterations of the program, in windows of time. The first ones are recorded one by one, as the other sections "
    "show; of later ones, each window holds the number, quantiles within 1 %, and sums by phase.")


def _html(run: Run) -> Body:
    blocks = []
    for name, rows in window_series(run).groupby("case", sort=False):
        case, phases = str(name), [phase for phase in PHASES if (rows[phase] > 0).any()]
        drawn = thinned_windows(rows, figures.NUM_COLUMNS)
        charts = [figures.times(f"Time of an iteration of {case} over the program's time", drawn)]
        if rows[["rss_bytes", "allocated_bytes"]].notna().any(axis=None):
            charts.append(figures.memory(f"Memory of {case} over the program's time", drawn))
        blocks.append(Block(title=case, case=case, legend=legend_of(phases, palette.PHASES), figures=charts,
                            table=_table(case, thinned_windows(rows, _NUM_ROWS), phases)))
    return Body(lead=_LEAD, blocks=blocks)


def _table(case: str, rows: pd.DataFrame, phases: list[str]) -> Table:
    def not_sampled(_: object) -> str:
        return "not sampled"

    columns = [
        Column("start_s", "From", fmt.duration, "time since charact began to watch the program"),
        Column("num_iterations", "Iterations", fmt.number, "iterations that ended in this time"),
        Column("median_s", "Median", fmt.seconds, "median time of an iteration, within 1 %"),
        Column("p90_s", "90 %", fmt.seconds, "90 % of the iterations took at most this time, within 1 %"),
        Column("max_s", "Longest", fmt.seconds, "longest iteration"),
        *(Column(phase, phase, fmt.seconds, "mean over the iterations") for phase in phases),
        Column("rss_bytes", "Resident set", fmt.num_bytes, "memory of the process at the end of this time",
               not_sampled),
    ]  # fmt: skip
    if rows["allocated_bytes"].notna().any():
        columns.append(Column("allocated_bytes", "Allocator", fmt.num_bytes,
                              "bytes of tensors in the CUDA allocator at the end of this time", not_sampled))
    return table(rows, f"Windows of time of {case}", columns)


SECTION = Section("over-time", "Over time", 46, _html, shows=lambda run: len(run.windows) > 0)
