"""What the median iteration of each side is made of, by phase."""

from collections.abc import Sequence

import pandas as pd

from charact.analysis.comparing.composition import case_repeats, median_s, phase_parts
from charact.analysis.comparing.matching import matched_cases
from charact.analysis.comparing.sides import Side
from charact.schema import PHASES


def phases_by_side(sides: Sequence[Side]) -> pd.DataFrame:
    """Time of each phase of the median iteration of each matched case whose iterations were timed.

    Columns: case; side; phase; time_s, which sums to the median over the phases. Phases are in order.
    """
    rows = []
    for case in matched_cases(sides)["case"].unique():
        for side, repeats in zip(sides, case_repeats(sides, case), strict=True):
            times = phase_parts(repeats, median_s(repeats)) if repeats else pd.Series(dtype="float64")
            rows += [[case, side.label, phase, times[phase]] for phase in PHASES if phase in times]
    return pd.DataFrame(rows, columns=["case", "side", "phase", "time_s"])
