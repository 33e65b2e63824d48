"""How much of the cores each case had, and whether other programs disturbed it."""

from typing import NamedTuple

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.record.manifest_passes import UNRELIABLE_FRAC, CoreUse
from charact.record.reader import Run

DISTURBED_FRAC = 0.05
"""Share of the wanted processor time that other programs took, from which times are marked as too long."""

_NUMBERS = ["used_cores", "wanted_cores", "others_cores", "num_usable_cores", "lost_frac"]


@memoize
def core_use(run: Run) -> pd.DataFrame:
    """Return how much of the cores each case used while its iterations were timed; only cases that recorded it.

    Columns: case; used_cores, processor time of the process and its children over wall time; wanted_cores, the same
    plus the time that their threads waited for a core; others_cores, processor time of all other programs and, on a
    virtual machine, of other machines, over wall time; num_usable_cores; lost_frac = lost / (used + lost), where other
    programs or machines took the lost processor time. wanted_cores and lost_frac are null if the system does not count
    waiting. If a case has more threads than cores, its threads also wait for each other. Of the waiting, at most the
    time that other programs used therefore counts as lost.
    """
    rows = []
    for entry in run.entries:
        if (use := entry.passes.timing.core_use) is not None:
            wanted_cores = None if use.waiting_s is None else (use.processor_s + use.waiting_s) / use.length_s
            rows.append([entry.case, use.processor_s / use.length_s, wanted_cores,
                         (use.others_s + (use.stolen_s or 0.0)) / use.length_s, use.num_usable_cores, use.lost_frac])
    return pd.DataFrame(rows, columns=["case", *_NUMBERS]).astype({"case": "str"} | dict.fromkeys(_NUMBERS, "float64"))


class Disturbance(NamedTuple):
    """Other programs that disturbed a case; fields as the columns of `core_use`."""

    others_cores: float
    num_usable_cores: float
    lost_frac: float

    @property
    def is_unreliable(self) -> bool:
        """Whether the case's shares, and so its bottleneck, may be false, and not only its times too long."""
        return self.lost_frac >= UNRELIABLE_FRAC

    def __str__(self) -> str:
        held = f"{self.others_cores:.1f}" if self.others_cores >= 0.05 else "less than 0.1"
        return f"other programs held {held} of {self.num_usable_cores:.0f} cores"


def disturbance(run: Run, case: str) -> Disturbance | None:
    """Return what other programs took from a case if its times are too long because of it; else None."""
    return _disturbance(run.entry(case).passes.timing.core_use)


def _disturbance(use: CoreUse | None) -> Disturbance | None:
    lost_frac = None if use is None else use.lost_frac
    if use is None or lost_frac is None or lost_frac < DISTURBED_FRAC:
        return None
    return Disturbance((use.others_s + (use.stolen_s or 0.0)) / use.length_s, use.num_usable_cores, lost_frac)


def why_unreliable(use: CoreUse | None) -> str | None:
    """Return why times may be wrong, from the use of the cores meanwhile; None if nothing is known against them."""
    others = _disturbance(use)
    return others and f"{'unreliable' if others.is_unreliable else 'times are too long'}: {others}"
