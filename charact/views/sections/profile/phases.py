"""The section Time by phase."""

from collections.abc import Iterator, Sequence

import pandas as pd

from charact.analysis.common.script_attribution import is_imported
from charact.analysis.common.significance import INTERVAL_METHOD
from charact.analysis.profile.breakdown import phase_breakdown
from charact.analysis.profile.case_summary import iteration_times, phase_times, slow_iterations
from charact.record.reader import Run
from charact.views.document import Block, Body, Item, Line
from charact.views.figures import bars
from charact.views.html.elements.blocks import CASE, PHASE, legend_of
from charact.views.section import Scalar, Section, body_of
from charact.views.sections.profile._shared import has_phases, no_bar, slow_text
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.model import Column, share_column, table


def _html(run: Run) -> Body:
    breakdown = phase_breakdown(run)
    columns = [
        CASE, PHASE,
        Column("time_s", "Time", fmt.seconds, "share × median iteration time: phases sum to the headline"),
        share_column("share_frac", "Share", "part of the time of typical iterations"),
        Column("median_s", "Median", fmt.seconds, "median over the iterations; medians do not sum"),
        Column("mean_s", "Mean", fmt.seconds, "mean over the iterations"),
        Column("host_s", "Host clock", fmt.seconds, "mean between the phase's marks on the host"),
        Column("device_s", "Device clock", fmt.seconds, "mean between the phase's CUDA events",
               lambda row: "timed on the host"),
    ]  # fmt: skip
    block = Block(
        figures=bars.phases(breakdown), legend=legend_of(breakdown["phase"], palette.PHASES),
        table=table(breakdown, "Time of an iteration by phase", columns),
        note=" ".join(f"{row.case}: {slow_text(row)}." for row in _reported(run).itertuples()),
    )  # fmt: skip
    taken = "Times are from the trace." if is_imported(run) else "Nothing else is measured at the same time."
    lead = f"Phases never overlap, and sum with “other” to the iteration’s wall time. {taken}"
    return body_of(run, "timing", lead, [block] if len(breakdown) else [], breakdown["case"])


_REPORTED_FRAC = 0.01
"""Smallest `extra_frac` of slow iterations that are reported."""


def _reported(run: Run) -> pd.DataFrame:
    return slow_iterations(run).query("extra_frac >= @_REPORTED_FRAC")


def _summary(run: Run, case: str) -> Sequence[Item]:
    """Return why a case has no bar of its phases, or what its slow iterations add."""
    if not (phase_breakdown(run)["case"] == case).any():
        return no_bar(run, case, "Time by phase", "timing")
    return [Line((slow_text(row), "warning")) for row in fmt.rows(_reported(run).query("case == @case"))]


def _scalars(run: Run) -> Iterator[Scalar]:
    for row in iteration_times(run).to_dict("records"):
        yield Scalar(f"{row['case']}/iteration_s", row["iteration"], row["wall_s"])
    for row in phase_times(run).to_dict("records"):
        yield Scalar(f"{row['case']}/phase/{row['phase']}_s", row["iteration"], row["time_s"])


SECTION = Section("phases", "Time by phase", 90, _html, shows=has_phases, summary=_summary, scalars=_scalars,
                  points={"timing": [
    ("Iteration time, phases, samples/s", "timing pass: phase marks only, no profiler. The iteration time is the "
     f"median, with its 95 % interval ({INTERVAL_METHOD}); a phase's time is its share of typical iterations' "
     "time, times that median. Slow drift makes the interval too narrow."),
]},
                  trace_points={"timing": [
    ("Iteration time, phases",
     "from the trace, so with the overhead of its profiler. The iteration time is the median, with its 95 % "
     f"interval ({INTERVAL_METHOD}); a phase’s time is its share of typical iterations’ time, times "
     "that median."),
]})
