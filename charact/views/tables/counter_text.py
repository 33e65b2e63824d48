"""Texts of counters: a name without its unit, a value with it."""

from typing import Any

from charact.views.tables import format as fmt

energy, power = fmt.quantity("J"), fmt.quantity("W")
"""Formatters: 30.1 J, 312 W."""

_UNITS: dict[str, fmt.Formatter] = {
    "flop_per_s": fmt.flop_rate, "bytes_per_s": fmt.byte_rate, "_frac": fmt.share,
    "_bytes": fmt.num_bytes, "_flop": fmt.num_flop, "_w": power,
    "_j": energy, "_hz": fmt.quantity("Hz"), "_c": fmt.quantity("°C"),
    "_s": fmt.seconds,
}  # fmt: skip
"""Formatters of values by the suffix of the counter's name; the first match is used."""
_SPELLED = {
    "flop": "FLOP", "llc": "LLC", "sm": "SM", "gpu": "GPU", "dram": "DRAM", "cpu": "CPU", "rss": "RSS", "pss": "PSS",
    "pcie": "PCIe", "nvlink": "NVLink", "fp64": "FP64", "fp32": "FP32", "fp16": "FP16",
}  # fmt: skip
_WHOLE = {
    "flop_per_s": "FLOP/s", "nonpredicated_efficiency_frac": "non-predicated execution efficiency",
}  # fmt: skip


def counter_name(counter: str) -> str:
    """Return a counter's name as text, without its unit: SM utilization."""
    if counter in _WHOLE:
        return _WHOLE[counter]
    ending = next((ending for ending in _UNITS if counter.endswith(ending)), "")
    words = counter.removeprefix("num_").removesuffix(ending).strip("_").split("_")
    name = " ".join(_SPELLED.get(word, word) for word in words)
    return name.replace("cores ", "cores busy in ", 1) if name.startswith("cores ") else name


def busy(row: Any) -> str:
    """Format a row of `utilization.busy`: 99.5 % of the CPU busy, also while waiting for memory."""
    share = fmt.share(row.busy_frac)
    if row.device_kind == "CPU":
        return f"{share} of the CPU busy, also while waiting for memory"
    return f"GPU {share} busy"


def counter_value(counter: str, value: float | None, reason: str | None = None) -> str:
    """Format a value in the unit of its counter's name: 93.0 %, 312 W."""
    return next((words for ending, words in _UNITS.items() if counter.endswith(ending)), fmt.number)(value, reason)
