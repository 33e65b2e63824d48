"""Counted work by phase, and the rate at which it was done."""

import pandas as pd

from charact.analysis.breakdown import phase_breakdown
from charact.analysis.order import in_order
from charact.store import Run


def flop_by_phase(run: Run) -> pd.DataFrame:
    """Work of each phase per iteration and the rate it was done at; phases with no counted work are left out.

    Columns: case; phase; flop, counted on fake tensors (1 MAC = 2 FLOP); bytes of the counted operators' inputs and
    outputs, each moved once, modelled; flop_per_byte, their arithmetic intensity; time_s of the phase as in
    `phase_breakdown`; flop_per_s = flop / time_s.

    *Error*: only convolutions, matrix products and attention are counted, so a phase's rate is a lower bound.
    """
    counted = run.flop.dropna(subset=["flop"])
    work = counted.groupby(["case", "phase"], as_index=False)[["flop", "bytes"]].sum(min_count=1)
    work["flop_per_byte"] = work["flop"] / work["bytes"].where(work["bytes"] > 0)
    work = work.merge(phase_breakdown(run)[["case", "phase", "time_s"]], on=["case", "phase"], how="left")
    work["flop_per_s"] = work["flop"] / work["time_s"].where(work["time_s"] > 0)
    return in_order(work, run, "case", "phase")
