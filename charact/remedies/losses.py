"""Losses of a trial's first backwards: their recorder, and how those of two trials differ."""

import functools
import math
from collections.abc import Sequence
from typing import Any

MOST_LOSSES = 10
"""Number of losses that are compared."""
ROUNDED_FRAC = 1e-3
"""Largest relative difference of losses that counts as rounding."""
_MOST_GROWTH = 300
"""Largest factor by which an update is taken to multiply differences that are rounding."""


class LossRecorder:
    """Values of the first tensors on which `backward` is called; read from the device at the end only."""

    def __init__(self) -> None:
        import torch

        self._losses: list[Any] = []
        original: Any = torch.Tensor.backward

        @functools.wraps(original)
        def backward(tensor: Any, *arguments: Any, **named: Any) -> None:
            if len(self._losses) < MOST_LOSSES and tensor.numel() == 1:
                self._losses.append(tensor.detach().clone())
            original(tensor, *arguments, **named)

        torch.Tensor.backward = backward  # type: ignore[assignment]

    def values(self) -> list[float]:
        """Return the losses so far."""
        return [float(loss) for loss in self._losses]


def difference_frac(base: Sequence[float], new: Sequence[float]) -> float | None:
    """Return the largest relative difference of losses, 0 if they are identical; None if they cannot be compared.

    They cannot if one has none, or if their numbers differ. Losses that are not finite differ by infinity, unless both
    are. Updates multiply differences by rounding: losses count up to the first that differ by more than rounding, if
    the difference before was at least a 300th of theirs.
    """
    if not base or len(base) != len(new):
        return None
    largest = 0.0
    for apart in map(_apart, base, new):
        if ROUNDED_FRAC < apart <= _MOST_GROWTH * largest and largest <= ROUNDED_FRAC:
            break
        largest = max(largest, apart)
    return largest


def _apart(base: float, new: float) -> float:
    if base == new or (math.isnan(base) and math.isnan(new)):
        return 0.0
    if not (math.isfinite(base) and math.isfinite(new)):
        return math.inf
    return abs(new - base) / max(abs(base), abs(new))
