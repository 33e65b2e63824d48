"""Texts of counters: a name without its unit, a value with it."""

from collections.abc import Callable
from functools import partial

import pandas as pd

from charact.core.units import quantity
from charact.views.tables import format as fmt

_Words = Callable[[float], str]

_UNITS: dict[str, _Words] = {
    "flop_per_s": fmt.flop_rate, "bytes_per_s": partial(quantity, unit="B/s"), "_frac": fmt.share,
    "_bytes": fmt.num_bytes, "_flop": fmt.num_flop, "_w": partial(quantity, unit="W"),
    "_j": partial(quantity, unit="J"), "_hz": partial(quantity, unit="Hz"), "_c": partial(quantity, unit="°C"),
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


def counter_value(counter: str, value: float, reason: str | None = None) -> str:
    """Format a value in the unit of its counter's name: 93.0 %, 312 W."""
    if pd.isna(value):
        return fmt.missing(reason)
    words = next((words for ending, words in _UNITS.items() if counter.endswith(ending)), fmt.number)
    return words(value)


def energy(value: float | None, reason: str | None = None) -> str:
    """Format an energy: 30.1 J."""
    return fmt.missing(reason) if value is None or fmt.absent(value) else quantity(value, "J")


def power(value: float | None, reason: str | None = None) -> str:
    """Format a power: 312 W."""
    return fmt.missing(reason) if value is None or fmt.absent(value) else quantity(value, "W")
