"""Comparing two ways of doing the same thing in one process: by turns, as a ratio with its interval."""

import time
from collections.abc import Callable
from statistics import median

from charact.core.statistics import median_interval

Timed = Callable[[], float]
"""Does the thing once and returns the seconds that it took."""


def compare(one: Timed, other: Timed, num_pairs: int) -> str:
    """Time of `one` over that of `other`: median of the pairs' ratios with its 95 % interval, as text.

    Each pair runs both, the order changing from pair to pair, so that what else the machine does, and what the one
    leaves in caches for the other, falls on both alike.
    """
    ratios = []
    for pair in range(num_pairs):
        if pair % 2:
            other_s = other()
            one_s = one()
        else:
            one_s = one()
            other_s = other()
        ratios.append(one_s / other_s)
    interval = median_interval(ratios)
    around = f"95 % interval {interval[0]:.4f} to {interval[1]:.4f}" if interval else "no interval"
    return f"{median(ratios):.4f} ({around}, {num_pairs} pairs)"


def timed(action: Callable[[], object]) -> Timed:
    """The action with a wall clock around it."""
    def run() -> float:
        begun = time.perf_counter()
        action()
        return time.perf_counter() - begun

    return run
