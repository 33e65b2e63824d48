"""The section Timeline: phases, operators and kernels of one iteration."""

from dataclasses import replace

from charact.analysis.profile.case_summary import case_summary
from charact.analysis.profile.iteration_timeline import IterationTimeline, iteration_timeline
from charact.core.errors import UserError
from charact.record.reader import Run
from charact.views.charts import LEAST_FRAC, Box, BoxChart, Graph
from charact.views.document import Block, Body
from charact.views.html.elements.blocks import operator_legend
from charact.views.section import Section
from charact.views.tables import format as fmt
from charact.views.tables import palette

_LEAD = (
    "One iteration of each case under the profiler: phases, operators of each thread below their callers, kernels of "
    "each stream. Click a box to zoom in; drag to move."
)
_MUCH_LONGER = 1.25
"""Ratio to the median iteration from which a note says so."""
_INSTEAD = "The tables Time by phase, Operators and Kernels have the numbers."


def _html(run: Run) -> Body:
    blocks, missing = [], []
    medians = case_summary(run).set_index("case")["median_s"].to_dict()
    for entry in run.entries:
        try:
            timeline = iteration_timeline(run, entry.case, LEAST_FRAC)
        except UserError as error:
            missing.append((entry.case, fmt.missing(str(error))))
        else:
            block = _block(entry.case, timeline, medians.get(entry.case))
            trace = run.trace(entry.case)
            where = "" if trace is None else f"`{trace.relative_to(run.path)}` of the run opens in Perfetto."
            blocks.append(replace(block, note=f"{block.note} {where}".strip()))
    return Body(lead=_LEAD, blocks=[*blocks, *([Block(title="Not shown", missing=missing)] if missing else [])])


def _block(case: str, timeline: IterationTimeline, median_s: float | None) -> Block:
    notes = []
    if median_s and timeline.length_s > _MUCH_LONGER * median_s:
        notes.append(f"This iteration took {fmt.seconds(timeline.length_s)} under the profiler, the median iteration "
                     f"{fmt.seconds(median_s)} without it: compare shares of it, not times.")
    if timeline.num_left_out:
        notes.append(f"{timeline.num_left_out:,} operators and kernels are left out: shorter than 1/2000 of the "
                     f"iteration, which took {fmt.seconds(timeline.length_s)}, or nested in 20 others.")
    if timeline.num_other_tracks:
        notes.append(f"{timeline.num_other_tracks:,} threads and streams with fewer events are left out.")
    legend = operator_legend(timeline.spans.loc[timeline.spans["track"] != "phases", "kind"].astype(str))
    tracks: list[tuple[int, str]] = []
    boxes: list[Box] = []
    next_row = 0
    for track, rows in timeline.spans.groupby("track", sort=False):
        tracks.append((next_row, str(track)))
        color = palette.PHASES.__getitem__ if track == "phases" else palette.operator_type
        boxes += [Box(next_row + row.depth, row.start_s, row.length_s, row.name,
                      row.layer if isinstance(row.layer, str) else "", color(row.kind)) for row in fmt.rows(rows)]
        next_row += int(rows["depth"].max()) + 1
    graph = Graph("Time", "s", timeline.length_s, "of the iteration", boxes, tracks)
    return Block(title=case, case=case, chart=BoxChart(f"Timeline of an iteration of {case}", _INSTEAD, [graph]),
                 legend=legend, note=" ".join(notes))


SECTION = Section("timeline", "Timeline", 154, _html,
                  shows=lambda run: any(run.trace(entry.case) is not None for entry in run.entries))
