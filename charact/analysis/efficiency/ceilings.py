"""The best rates that the machine was measured to reach, and those that stand over each case."""

from typing import Any

import pandas as pd

from charact.analysis.common.cache import once
from charact.analysis.common.script_attribution import is_imported
from charact.machine.ceilings_cache import UNDISTURBED_FRAC
from charact.record.reader import Run

_TEXTS = ["device", "ceiling", "precision", "level", "unit", "datasheet_source"]
_NUMBERS = ["working_set_bytes", "value", "low", "high", "datasheet"]
_COLUMNS = [
    "device", "ceiling", "precision", "working_set_bytes", "level", "value", "low", "high", "unit", "datasheet",
    "datasheet_source",
]  # fmt: skip
_REMEDY = "run charact doctor --ceilings, then measure again"
_COMPUTED_IN = {"pure-bf16": "bf16"}
"""Precisions whose products are those of another."""


@once
def ceilings(run: Run) -> pd.DataFrame:
    """What the machine was measured to reach, in the order it was measured.

    Columns: device; ceiling ('gemm', 'copy', 'triad', 'launch', 'host_to_device' or 'device_to_host'); precision of
    the products (null for the others); working_set_bytes and level ('L1', 'L2', 'L3' or 'memory') that it lies in;
    value with the 95 % interval of the median low to high; unit of these; datasheet, what the maker states, and
    datasheet_source.
    """
    measured = pd.DataFrame(run.manifest.get("ceilings") or [], columns=_COLUMNS)
    return measured.astype(dict.fromkeys(_NUMBERS, "float64") | dict.fromkeys(_TEXTS, "object"))


def ceilings_reason(run: Run) -> str | None:
    """Why a run has no ceilings, with what to do about it; None where it has some."""
    if run.manifest.get("ceilings"):
        return None
    if is_imported(run):
        return "a trace does not tell what its machine can reach"
    return str(run.manifest.get("ceilings_reason") or f"no ceilings were measured before this run: {_REMEDY}")


def ceilings_disturbed_frac(run: Run) -> float | None:
    """Share of the cores that a run's ceilings were measured with, where other processes had much of them meanwhile."""
    fracs = [row.get("cores_frac") for row in run.manifest.get("ceilings") or []]
    least = min((frac for frac in fracs if frac is not None), default=None)
    return least if least is not None and least < UNDISTURBED_FRAC else None


@once
def case_ceilings(run: Run) -> pd.DataFrame:
    """The ceilings over each case, one row a case.

    Columns: case; peak_flop_per_s, of products in the case's precision on its device; peak_bytes_per_s, the better of
    copy and triad in memory; launch_s, what one operator costs on a CPU before it computes, one launch on CUDA; reason,
    why one of the two rates is not known.
    """
    measured = ceilings(run)
    rows = [[entry["case"], *_over(run, entry, measured)] for entry in run.manifest["cases"]]
    found = pd.DataFrame(rows, columns=["case", "peak_flop_per_s", "peak_bytes_per_s", "launch_s", "reason"])
    return found.astype({"case": "str", "reason": "object"}
                        | dict.fromkeys(["peak_flop_per_s", "peak_bytes_per_s", "launch_s"], "float64"))


def product_ceiling(run: Run, device: str, precision: str) -> float:
    """The best rate of products (FLOP/s) in a precision on a device; not a number where it was not measured."""
    rows = ceilings(run)
    computed_in = _COMPUTED_IN.get(precision, precision)
    found = (rows["ceiling"] == "gemm") & (rows["device"] == _numbered(device)) & (rows["precision"] == computed_in)
    return float(rows.loc[found, "value"].max())


def transfer_ceiling(run: Run, device: str, way: str) -> float:
    """The best rate (B/s) of copies 'host_to_device' or 'device_to_host'; not a number where it was not measured."""
    rows = ceilings(run)
    return float(rows.loc[(rows["ceiling"] == way) & (rows["device"] == _numbered(device)), "value"].max())


def _numbered(device: str) -> str:
    """A device's name with its number: a program's or a trace's tells none where it uses the first."""
    return "cuda:0" if device == "cuda" else device


def _over(run: Run, entry: dict[str, Any], measured: pd.DataFrame) -> tuple[float, float, float, str | None]:
    """Rate of products, bandwidth and launch over a case, and why one of the rates is not known."""
    device, precision = _numbered(entry["device"]), entry["precision"]
    here = measured[measured["device"] == device]
    rate = product_ceiling(run, device, precision)
    memory = here[here["ceiling"].isin(["copy", "triad"]) & (here["level"] == "memory")]
    reason = ceilings_reason(run)
    if reason is None and here.empty:
        reason = str(run.manifest.get("ceilings_reason") or f"no ceilings of {device} were measured: {_REMEDY}")
    elif reason is None and precision == "as written":
        reason = "the precision of a watched program is not known"
    elif reason is None and pd.isna(rate):
        reason = (f"no ceiling of products in {precision} was measured on {device}, which may have no instructions for "
                  "them")
    elif reason is None and memory.empty:
        reason = f"the bandwidth of {device}’s memory was not measured, which takes more free memory: {_REMEDY}"
    launch_s = here.loc[here["ceiling"] == "launch", "value"].max()
    return rate, memory["value"].max(), launch_s, reason
