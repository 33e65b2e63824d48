"""MFU and HFU: rates of FLOP as shares of the datasheet's peak."""

from typing import Any

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.common.pass_status import pass_reason
from charact.analysis.efficiency.ceilings import product_precision
from charact.analysis.efficiency.roofline import work_reason
from charact.analysis.profile.case_summary import case_summary
from charact.machine.datasheets import datasheet
from charact.record.manifest import CaseEntry
from charact.record.reader import Run

_NUMBERS = ["model_flop", "recomputed_flop", "peak_flop_per_s", "mfu_frac", "hfu_frac"]


@memoize
def flop_utilization(run: Run) -> pd.DataFrame:
    """Return the model FLOP utilization (MFU) and hardware FLOP utilization (HFU) of each case, one row for each.

    Columns: case; model_flop, FLOP of an iteration without recomputed ones, on the case's device; recomputed_flop, of
    layers whose forward runs again inside a backward (activation checkpointing); peak_flop_per_s, the datasheet's peak
    of dense products in the case's precision; peak_source, the datasheet; mfu_frac = model_flop / median iteration time
    / peak_flop_per_s; hfu_frac, the same with recomputed FLOP, null if none are recomputed; mfu_reason, why mfu_frac is
    null.

    *Error*: pointwise work and operators without a formula count no FLOP, so the shares are lower bounds. Recomputed
    functions that call no module count as model FLOP.

    *Source*: Chowdhery et al., PaLM, 2022, appendix B; Korthikanti et al., Reducing Activation Recomputation in Large
    Transformer Models, 2022, section 6.3.
    """
    rows = [_row(run, entry, facts) for entry, facts in zip(
        run.entries, case_summary(run).to_dict("records"), strict=True)]
    table = pd.DataFrame(rows, columns=["case", *_NUMBERS, "peak_source", "mfu_reason"])
    return table.astype({"case": "str", "peak_source": "object", "mfu_reason": "object"}
                        | dict.fromkeys(_NUMBERS, "float64"))


def mfu_reason(run: Run, case: str) -> str | None:
    """Return why a case has no MFU; None if it has one."""
    (reason,) = flop_utilization(run).query("case == @case")["mfu_reason"]
    return None if pd.isna(reason) else str(reason)


def _row(run: Run, entry: CaseEntry, facts: dict[Any, Any]) -> dict[str, Any]:
    flop, median_s, recomputed = facts["flop"], facts["median_s"], entry.passes.flop.recomputed_flop
    row: dict[str, Any] = {"case": entry.case, "recomputed_flop": recomputed,
                           "model_flop": None if recomputed is None else flop - recomputed}
    precision, sheet = product_precision(entry), datasheet(entry.device_name or "")
    peak = None if sheet is None else sheet.flop_per_s.get(precision)
    if sheet is not None:
        row |= {"peak_flop_per_s": peak, "peak_source": sheet.source}
    if pd.isna(flop):
        reason = work_reason(run, entry.case) or "no FLOP were counted"
    elif pd.isna(median_s):
        reason = pass_reason(run, entry.case, "timing") or "not timed"
    elif recomputed is None:
        reason = "the record lacks the recomputed FLOP: measure again"
    elif sheet is None:
        name = entry.device_name or ("the CPU" if entry.device == "cpu" else f"the device {entry.device}")
        reason = f"no datasheet peak of {name} is known: see its share of the measured ceiling"
    elif precision == "as written":
        reason = "the precision of the program’s products was not counted"
    elif peak is None:
        reason = f"the datasheet of {entry.device_name} has no peak in {precision}"
    else:
        rate = 1 / median_s / peak
        return row | {"mfu_frac": (flop - recomputed) * rate, "hfu_frac": flop * rate if recomputed else None}
    return row | {"mfu_reason": reason}
