"""Metrics of Nsight Compute, and the counters computed from them."""

import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from charact.measure.counters.ncu.csv_page import Launch

DURATION = "gpu__time_duration.sum"
SHARES = {
    "warp_occupancy_frac": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "warp_execution_efficiency_frac": "smsp__thread_inst_executed_per_inst_executed.pct",
    "nonpredicated_efficiency_frac": "smsp__thread_inst_executed_pred_on_per_inst_executed.pct",
    "bandwidth_utilization_frac": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
}
"""Metrics of counters that are shares."""
_BYTES = "dram__bytes.sum"
_FLOP_OF = {f"smsp__sass_thread_inst_executed_op_{width}{operation}_pred_on.sum": flop
            for width in "hfd" for operation, flop in (("add", 1), ("mul", 1), ("fma", 2))}
"""FLOP of an instruction executed by one thread."""
_TENSOR = re.compile(r"sm__ops_path_tensor_src_(?:fp|bf|tf)\w+")


def wanted_metrics(listed: AbstractSet[str]) -> list[str]:
    """Return the metrics to request, of those that the chip has; names are compared without suffix.

    Metrics of tensor-core operations differ by chip, and some have parts (`..._dst_fp32`) in addition to the sum; then
    only the sum is used.
    """
    tensor = sorted(name for name in listed if _TENSOR.fullmatch(name))
    whole = [name for name in tensor if not any(name.startswith(f"{other}_") for other in tensor)]
    fixed = [DURATION, *SHARES.values(), _BYTES, *_FLOP_OF]
    return [name for name in fixed if name.partition(".")[0] in listed] + [f"{name}.sum" for name in whole]


def counters_of(launches: Sequence[Launch]) -> dict[str, float]:
    """Return counters over some launches by name: shares are means weighted by duration, the others are sums.

    A sum is omitted if a launch does not contain its metric.
    """
    found: dict[str, float] = {"num_launches": len(launches)}
    for counter, metric in SHARES.items():
        weighed = [(launch.values[metric], launch.values[DURATION]) for launch in launches
                   if metric in launch.values and launch.values.get(DURATION, 0) > 0]
        if weighed:
            found[counter] = sum(value * time_s for value, time_s in weighed) / sum(time_s for _, time_s in weighed)
    sums: dict[str, Callable[[Mapping[str, float]], float | None]] = {
        "kernel_s": lambda values: values.get(DURATION), "dram_bytes": lambda values: values.get(_BYTES),
        "executed_flop": _flop}
    for counter, of in sums.items():
        parts = [part for launch in launches if (part := of(launch.values)) is not None]
        if len(parts) == len(launches) > 0:
            found[counter] = sum(parts)
    if "executed_flop" in found and found.get("kernel_s", 0) > 0:
        found["flop_per_s"] = found["executed_flop"] / found["kernel_s"]
    return found


def _flop(values: Mapping[str, float]) -> float | None:
    """Return the FLOP of a launch: of 2, 4 and 8 bytes, fused operations count twice, and of tensor cores."""
    counted = [values[name] * flop for name, flop in _FLOP_OF.items() if name in values]
    if len(counted) < len(_FLOP_OF):
        return None
    return sum(counted) + sum(value for name, value in values.items() if _TENSOR.match(name))
