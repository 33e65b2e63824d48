"""The section Timeline: phases, operators and kernels of one iteration."""

from charact.analysis.profile.case_summary import case_summary
from charact.analysis.profile.iteration_timeline import IterationTimeline, iteration_timeline
from charact.core.errors import UserError
from charact.record.reader import Run
from charact.views.charts import LEAST_FRAC, Box, BoxChart, Graph
from charact.views.document import Block, Body
from charact.views.section import Section
from charact.views.tables import format as fmt
from charact.views.tables import palette

_LEAD = (
    "One iteration of each case under the profiler: its phases, the operators of each thread below their callers, and "
    "the kernels of each stream. Click a box to zoom into it; drag, or use the buttons and arrow keys, to move."
)
_MUCH_LONGER = 1.25
"""Ratio to the median iteration from which a note says so."""
_INSTEAD = "The tables Time by phase, Operators and Kernels have the numbers."


def _has_trace(run: Run) -> bool:
    return any(run.trace(entry["case"]) is not None for entry in run.manifest["cases"])


def timelines(run: Run) -> Body:
    """Build the section: a chart for each case with a trace."""
    blocks, missing = [], []
    medians = case_summary(run).set_index("case")["median_s"].to_dict()
    for case in (str(entry["case"]) for entry in run.manifest["cases"]):
        try:
            found = iteration_timeline(run, case, LEAST_FRAC)
        except UserError as error:
            missing.append((case, fmt.missing(str(error))))
        else:
            blocks.append(_block(case, found, medians.get(case)))
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
    kinds = timeline.spans.loc[timeline.spans["track"] != "phases", "kind"].unique()
    legend = [(str(kind), palette.operator_type(str(kind))) for kind in kinds]
    return Block(title=case, case=case, chart=_chart(case, timeline), legend=legend, note=" ".join(notes))


def _chart(case: str, timeline: IterationTimeline) -> BoxChart:
    spans = timeline.spans
    tracks: list[tuple[int, str]] = []
    boxes: list[Box] = []
    next_row = 0
    for track, rows in spans.groupby("track", sort=False):
        tracks.append((next_row, str(track)))
        color = palette.PHASES.__getitem__ if track == "phases" else palette.operator_type
        boxes += [Box(next_row + row.depth, row.start_s, row.length_s, row.name,
                      row.layer if isinstance(row.layer, str) else "", color(row.kind)) for row in fmt.rows(rows)]
        next_row += int(rows["depth"].max()) + 1
    graph = Graph("Time", "s", timeline.length_s, "of the iteration", boxes, tracks)
    return BoxChart(f"Timeline of an iteration of {case}", _INSTEAD, [graph])


SECTION = Section("timeline", "Timeline", 154, timelines, shows=_has_trace)
