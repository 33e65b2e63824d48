"""Formatting of numbers in base units: three significant digits and a prefix.

Amounts of memory (B) have binary prefixes, as PyTorch and the tools of GPU vendors print them; rates (B/s) have decimal
prefixes, as data sheets do.
"""

import math
from collections.abc import Callable, Sequence

_PREFIXES = {-3: "n", -2: "µ", -1: "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T", 5: "P", 6: "E"}
_BINARY_PREFIXES = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DIVISIBLE = ("s", "J", "W")


def quantity(value: float, unit: str) -> str:
    """Return a number with its unit: 99.5 ms, 8.18 GFLOP, 1.50 GiB."""
    factor, scaled_unit = scale([value], unit)
    return f"{digits(value * factor)} {scaled_unit}"


def share(value: float) -> str:
    """Return a share of 1 as a percentage: 30.1 %."""
    return "< 0.1 %" if 0 < value < 0.0005 else f"{100 * value:.1f} %"


def scale(values: Sequence[float], unit: str) -> tuple[float, str]:
    """Return the factor and unit, such as (1e3, "ms"), that scale the largest value to between 1 and 1000 (B: 1024)."""
    largest = max((abs(value) for value in values), default=0.0)
    if unit == "B":
        power = max(math.frexp(largest)[1] - 1, 0) // 10
        power += round(largest / 1024.0**power) == 1024  # 1.00 GiB, not 1,024 MiB
        power = min(power, len(_BINARY_PREFIXES) - 1)
        return 1024.0**-power, f"{_BINARY_PREFIXES[power]}{unit}"
    power = math.floor(math.log10(rounded(largest, 3)) / 3 + 1e-12) if largest else 0
    # Long times stay in seconds; there are no parts of a byte or of an operation.
    power = max(power, -3 if unit in _DIVISIBLE else 0)
    power = min(power, 0 if unit == "s" else 6)
    return 1000.0**-power, f"{_PREFIXES[power]}{unit}"


def digits(value: float, significant: int = 3) -> str:
    """Return a number with some significant digits, whole numbers in full, never in exponents."""
    near = rounded(value, significant)
    if not near:
        return "0"
    decimals = max(significant - 1 - math.floor(math.log10(abs(near))), 0)
    return f"{value:,.{decimals}f}"


def rounded(value: float, significant: int) -> float:
    """Return the nearest number with some significant digits."""
    return float(f"{value:.{significant - 1}e}")


def needed_text(needed_bytes: float, allocated_bytes: float | None, context_bytes: float | None,
                size_text: Callable[[float], str]) -> str:
    """Return the needed memory (bytes), on a GPU with its parts, which add up to it; `context_bytes` is None elsewhere.

    `size_text` formats a number of bytes. As in: 51.6 GiB (44.5 GiB allocated, 6.21 GiB reserved in addition, 884 MiB
    CUDA context).
    """
    words = size_text(needed_bytes)
    if context_bytes is None or allocated_bytes is None:
        return words
    unused_bytes = needed_bytes - allocated_bytes - context_bytes
    return (f"{words} ({size_text(allocated_bytes)} allocated, {size_text(unused_bytes)} reserved in addition, "
            f"{size_text(context_bytes)} CUDA context)")
