"""Checks and columns that sections of profiled cases share."""

from typing import Any

from charact.analysis.common.pass_status import pass_reason, was_asked_for
from charact.record.reader import Run
from charact.views.document import Line
from charact.views.tables import format as fmt
from charact.views.tables.model import Column

NUM_TOP = 25
"""Largest number of rows of a case in a table of operators, layers or kernels."""


def is_timed(run: Run) -> bool:
    """Return whether a run has a case with a timing pass; a constructed model that was measured, too, is none."""
    return any("timing" in entry.passes and "construct" not in entry.passes for entry in run.entries)


def has_phases(run: Run) -> bool:
    """Return whether a run has a timing pass or timed iterations, apart from those of constructed models."""
    return is_timed(run) or not set(run.iterations["case"]) <= set(run.constructions["case"])


def no_bar(run: Run, case: str, title: str, name: str) -> list[Line]:
    """Return a line that says why a case has no bar; no line if all of several cases have the same reason.

    Args:
        run: the run.
        case: name of the case.
        title: title of the bar.
        name: of the pass that would have measured the bar.
    """
    reasons = {entry.case: pass_reason(run, entry.case, name) for entry in run.entries}
    reason = reasons[case]
    if reason is not None and len(reasons) > 1 and set(reasons.values()) == {reason}:
        return []
    return [Line(f"{title}  ", (fmt.missing(reason or "the record has no data"), "dim"))]


def slow_text(row: Any) -> str:
    """Return a row of `slow_iterations` as a clause: how many were slow, how much they added, and in which phase."""
    most = fmt.share(min(row.phase_frac, 1.0))  # other phases may have been shorter than usual
    return (f"{row.num_slow} of {row.num_iterations} iterations took much longer, by {fmt.duration(row.extra_s)} in "
            f"all ({fmt.share(row.extra_frac)} of the time), {most} of it in {row.phase}; the shares leave them out")


def flop_columns(run: Run, work: str, rate: str) -> list[Column]:
    """Return the columns FLOP and FLOP/s with these tooltips; none if the run has no FLOP pass."""
    if not was_asked_for(run, "flop"):
        return []

    def uncounted(row: Any) -> str:
        return pass_reason(run, row.case, "flop") or "no formula, or counted in an inner operator"

    return [Column("flop", "FLOP", fmt.num_flop, work, uncounted),
            Column("flop_per_s", "FLOP/s", fmt.flop_rate, rate, uncounted)]
