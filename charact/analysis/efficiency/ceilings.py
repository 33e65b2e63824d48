"""Best rates measured on the machine, and the ceilings of each case."""

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.common.script_attribution import is_imported
from charact.analysis.profile.breakdown import operator_times
from charact.machine.ceilings_cache import UNDISTURBED_FRAC
from charact.record.manifest import CaseEntry
from charact.record.reader import Run

_TEXTS = ["device", "ceiling", "precision", "level", "unit", "datasheet_source", "origin"]
_NUMBERS = ["working_set_bytes", "value", "low", "high", "datasheet"]
_COLUMNS = [
    "device", "ceiling", "precision", "working_set_bytes", "level", "value", "low", "high", "unit", "datasheet",
    "datasheet_source", "origin",
]  # fmt: skip
_SUSTAINED_S = 1e-3
"""Least time in an iteration of operators whose rate may raise a ceiling."""
_REMEDY = "run charact doctor --ceilings, then measure again"
_COMPUTED_IN = {"pure-bf16": "bf16", "int8-weights": "fp32"}
"""Precisions whose products are computed in another precision."""


@memoize
def ceilings(run: Run) -> pd.DataFrame:
    """Return the measured ceilings of the machine, in the order of measurement.

    Columns: device; ceiling ('gemm', 'copy', 'triad', 'launch', 'host_to_device' or 'device_to_host'); precision of the
    products (null for others); working_set_bytes and the level that holds it ('L1', 'L2', 'L3' or 'memory'); value with
    the 95 % interval of the median low to high; unit of these; datasheet, the manufacturer's value, and
    datasheet_source; origin, null for a probe, else the workload that reached a higher rate than all probes.
    """
    measured = pd.DataFrame(run.manifest.get("ceilings") or [], columns=_COLUMNS)
    return measured.astype(dict.fromkeys(_NUMBERS, "float64") | dict.fromkeys(_TEXTS, "object"))


def ceilings_reason(run: Run) -> str | None:
    """Return why a run has no ceilings, with a remedy; None if it has some."""
    if run.manifest.get("ceilings"):
        return None
    if is_imported(run):
        return "a trace has no ceilings of its machine"
    return str(run.manifest.get("ceilings_reason") or f"no ceilings were measured before this run: {_REMEDY}")


def ceilings_disturbed_frac(run: Run) -> float | None:
    """Return the share of the cores available while ceilings were measured, if other processes used much of them."""
    fracs = [row.get("cores_frac") for row in run.manifest.get("ceilings") or []]
    least = min((frac for frac in fracs if frac is not None), default=None)
    return least if least is not None and least < UNDISTURBED_FRAC else None


@memoize
def case_ceilings(run: Run) -> pd.DataFrame:
    """Return the ceilings of each case, one row for each.

    Columns: case; peak_flop_per_s, of products in the case's precision on its device, or the higher rate that an
    operator type of the run reached; peak_origin, null for a probe, else where a workload reached the rate;
    peak_bytes_per_s, the better of copy and triad in memory; launch_s, the fixed cost of an operator on a CPU, of a
    launch on CUDA; reason, why one of the two rates is unknown.
    """
    measured, observed, no_ceilings = ceilings(run), observed_ceilings(run), ceilings_reason(run)
    rows = []
    for entry in run.entries:
        device, precision = _numbered(entry.device), product_precision(entry)
        here = measured[measured["device"] == device]
        products = pd.concat([here[here["ceiling"] == "gemm"], observed[observed["device"] == device]])
        best = products[products["precision"] == precision].sort_values("value").tail(1)
        memory = here[here["ceiling"].isin(["copy", "triad"]) & (here["level"] == "memory")]
        reason = no_ceilings
        if reason is None and here.empty:
            reason = str(run.manifest.get("ceilings_reason") or f"no ceilings of {device} were measured: {_REMEDY}")
        elif reason is None and precision == "as written":
            reason = "the precision of the program’s products was not counted"
        elif reason is None and best.empty:
            reason = f"no ceiling of products in {precision} was measured on {device}, which may not support them"
        elif reason is None and memory.empty:
            reason = f"the memory bandwidth of {device} was not measured (needs more free memory): {_REMEDY}"
        rows.append([entry.case, best["value"].max(), memory["value"].max(),
                     here.loc[here["ceiling"] == "launch", "value"].max(),
                     next(iter(best["origin"].dropna()), None), reason])
    numbers = ["peak_flop_per_s", "peak_bytes_per_s", "launch_s"]
    table = pd.DataFrame(rows, columns=["case", *numbers, "peak_origin", "reason"])
    texts = {"case": "str", "peak_origin": "object", "reason": "object"}
    return table.astype(texts | dict.fromkeys(numbers, "float64"))


@memoize
def observed_ceilings(run: Run) -> pd.DataFrame:
    """Return the rates of products above the measured ceiling of their device and precision, the highest of each.

    Such a rate shows that the probes are slower than what the device can do, or that an algorithm needs fewer
    operations than are counted (Winograd).

    Columns: device; precision, as in `ceilings`; value (FLOP/s), FLOP over time of the operators of one type, phase and
    layer that take 1 ms or more of an iteration; origin, their type, layer and case.
    """
    places = {entry.case: (_numbered(entry.device), product_precision(entry)) for entry in run.entries}
    keys = ["case", "operator_type", "layer", "phase"]
    groups = operator_times(run).groupby(keys, dropna=False, sort=False, as_index=False)
    sums = groups[["flop", "time_s"]].sum()
    sums = sums[(sums["flop"] > 0) & (sums["time_s"] >= _SUSTAINED_S)]
    best: dict[tuple[str, str], tuple[float, str]] = {}
    probed = {place: product_ceiling(run, *place) for place in set(places.values())}
    for row in sums.to_dict("records"):
        place, rate = places[row["case"]], row["flop"] / row["time_s"]
        if rate > max(probed[place], best.get(place, (0.0, ""))[0]):
            layer = f" {row['layer']}" if isinstance(row["layer"], str) else ""
            best[place] = rate, f"{row['operator_type']}{layer} in {row['case']}"
    return pd.DataFrame([[*place, *highest] for place, highest in best.items()],
                        columns=["device", "precision", "value", "origin"])


def product_ceiling(run: Run, device: str, precision: str) -> float:
    """Return the best rate of products (FLOP/s) in a precision on a device; NaN if not measured."""
    rows = ceilings(run)
    computed_in = _COMPUTED_IN.get(precision, precision)
    is_product = (rows["ceiling"] == "gemm") & (rows["precision"] == computed_in)
    return float(rows.loc[is_product & (rows["device"] == _numbered(device)), "value"].max())


def transfer_ceiling(run: Run, device: str, way: str) -> float:
    """Return the best rate (B/s) of copies 'host_to_device' or 'device_to_host'; NaN if not measured."""
    rows = ceilings(run)
    return float(rows.loc[(rows["ceiling"] == way) & (rows["device"] == _numbered(device)), "value"].max())


def product_precision(entry: CaseEntry) -> str:
    """Return the precision in which a case computes products; of a watched program that of most of its FLOP."""
    if entry.precision == "as written":
        return entry.passes.flop.product_precision or entry.precision
    return _COMPUTED_IN.get(entry.precision, entry.precision)


def _numbered(device: str) -> str:
    """Return a device's name with its index: programs and traces omit it for the first device."""
    return "cuda:0" if device == "cuda" else device
