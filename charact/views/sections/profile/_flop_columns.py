"""FLOP columns of the tables of operators and layers."""

from typing import Any

from charact.analysis.common.pass_status import pass_reason, was_asked_for
from charact.record.reader import Run
from charact.views.tables import format as fmt
from charact.views.tables.model import Column

_UNCOUNTED = "no formula"


def flop_columns(run: Run, work: str, rate: str) -> list[Column]:
    """Return the columns FLOP and FLOP/s with these tooltips; none if the run has no FLOP pass."""
    if not was_asked_for(run, "flop"):
        return []

    def uncounted(row: Any) -> str:
        return pass_reason(run, row.case, "flop") or _UNCOUNTED

    return [Column("flop", "FLOP", fmt.num_flop, work, uncounted),
            Column("flop_per_s", "FLOP/s", fmt.flop_rate, rate, uncounted)]
