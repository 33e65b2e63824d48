"""Parsing of the sizes of a problem, as in `gemm:3072x128x1024`."""

import re
from collections.abc import Sequence

from charact.core.errors import UserError

_LARGEST = 10**9
_MOST_ELEMENTS = 2**56
"""Limit for one tensor: PyTorch counts its bytes with 64 bits."""


def whole_numbers(text: str, count: int, syntax: str) -> list[int]:
    """Return a number of positive integers that are joined by `x`."""
    parts = text.split("x")
    if len(parts) != count or not all(re.fullmatch(r"[0-9]{1,20}", part) for part in parts):
        raise malformed(text, syntax)
    numbers = [int(part) for part in parts]
    for number in numbers:
        if not 1 <= number <= _LARGEST:
            raise UserError(f"--problem: the size {number} in '{text[:60]}' is not from 1 to {_LARGEST:,}")
    return numbers


def malformed(text: str, syntax: str) -> UserError:
    """Return the error of a malformed text."""
    return UserError(f"--problem: '{text[:60]}' does not fit {syntax}")


def check_elements(text: str, *tensors: Sequence[int]) -> None:
    """Check that tensors of these shapes are possible."""
    for shape in tensors:
        num_elements = 1
        for size in shape:
            num_elements *= size
        if num_elements > _MOST_ELEMENTS:
            raise UserError(f"--problem: '{text[:60]}' has a tensor of {num_elements:.3g} numbers, more than PyTorch "
                            "can count the bytes of: choose smaller sizes")
