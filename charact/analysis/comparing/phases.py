"""What the median iteration of each side is made of, by phase."""

from collections.abc import Collection, Sequence

import pandas as pd

from charact.analysis.comparing.composition import compositions
from charact.analysis.comparing.sides import Side
from charact.schema import PHASES


def phases_by_side(sides: Sequence[Side], cases: Collection[str] | None = None) -> pd.DataFrame:
    """Time of each phase of the median iteration of each matched case whose iterations were timed, or of those named.

    Columns: case; side; phase; time_s, which sums to the median over the phases. Phases are in order.
    """
    rows = []
    for case, of_side in compositions(sides, cases).items():
        for side in sides:
            times = of_side[side.label].phases if side.label in of_side else pd.Series(dtype="float64")
            rows += [[case, side.label, phase, times[phase]] for phase in PHASES if phase in times]
    return pd.DataFrame(rows, columns=["case", "side", "phase", "time_s"])
