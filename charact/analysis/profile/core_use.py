"""How much of the cores each case had, and whether other programs disturbed it."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.record.case_facts import pass_facts
from charact.record.reader import Run

DISTURBED_FRAC = 0.05
"""Share of the wanted processor time that other programs took, from which times are marked as too long."""
UNRELIABLE_FRAC = 0.25
"""The same share, from which a case gets no verdict; `benchmarks/busy_machine.py` counts false verdicts."""

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
    rows = [[entry["case"], *_row(facts)] for entry in run.manifest["cases"]
            if (facts := pass_facts(entry, "timing").get("core_use"))]
    return pd.DataFrame(rows, columns=["case", *_NUMBERS]).astype({"case": "str"} | dict.fromkeys(_NUMBERS, "float64"))


def _row(facts: dict[str, Any]) -> list[float | None]:
    length_s, used_s, others_s = facts["length_s"], facts["processor_s"], facts["others_s"]
    waiting_s, stolen_s = facts.get("waiting_s"), facts.get("stolen_s") or 0.0
    lost_frac = None
    if waiting_s is not None:
        # The host of a virtual machine steals from all programs alike.
        lost_s = min(waiting_s, others_s) + stolen_s * used_s / max(used_s + others_s, 1e-9)
        lost_frac = lost_s / max(used_s + lost_s, 1e-9)
    wanted_cores = None if waiting_s is None else (used_s + waiting_s) / length_s
    return [used_s / length_s, wanted_cores, (others_s + stolen_s) / length_s, facts["num_usable_cores"], lost_frac]


@dataclass(frozen=True)
class Disturbance:
    """Other programs that disturbed a case; fields as the columns of `core_use`."""

    others_cores: float
    num_usable_cores: float
    lost_frac: float

    @property
    def is_unreliable(self) -> bool:
        """Whether the case's shares, and so its bottleneck, may be false, and not only its times too long."""
        return self.lost_frac >= UNRELIABLE_FRAC

    def __str__(self) -> str:
        return f"other programs held {self.others_cores:.1f} of {self.num_usable_cores:.0f} cores"


def disturbance(run: Run, case: str) -> Disturbance | None:
    """Return what other programs took from a case if its times are too long because of it; else None."""
    return next((disturbance_of(entry) for entry in run.manifest["cases"] if entry["case"] == case), None)


def disturbance_of(entry: dict[str, Any]) -> Disturbance | None:
    """Return what other programs took from a case of a manifest, as `disturbance`."""
    facts = pass_facts(entry, "timing").get("core_use")
    if not facts:
        return None
    _, _, others_cores, num_usable_cores, lost_frac = _row(facts)
    if lost_frac is None or lost_frac < DISTURBED_FRAC or others_cores is None or num_usable_cores is None:
        return None
    return Disturbance(others_cores, num_usable_cores, lost_frac)


def why_unreliable(entry: dict[str, Any]) -> str | None:
    """Return why the times of a case of a manifest may be wrong, as text; None if nothing is known against them."""
    found = disturbance_of(entry)
    if found is None:
        return None
    return f"{'unreliable' if found.is_unreliable else 'times are too long'}: {found}"
