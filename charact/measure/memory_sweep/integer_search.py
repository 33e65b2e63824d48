"""Integer searches for the largest batch size or input size that fits."""

import math
from collections.abc import Callable

from charact.core.errors import UserError

_FIRST_GROWTH, _GROWTH = 8, 64
"""Largest growth of value ** power from one guess to the next while every value fits: without and with an interpolated
line."""


def largest_fitting(room: Callable[[int], float], smallest: int, start: int, most: int, power: float = 1.0
                    ) -> int | None:
    """Return the largest value from `smallest` to `most` that fits, or None.

    Interpolates the room that a value leaves, which is nearly linear in value ** power. If three guesses do not halve
    the interval, the next guess is its middle. A search therefore takes little more than a bisection. This assumes that
    fitting is monotonic. The result and the next value are always checked, except the one after `most`.

    `room` returns the memory that a value leaves, negative if it does not fit; plus or minus infinity if only the
    answer is known. It is called at most once per value, first with `start`. Memory is linear in the value's `power`,
    such as 2 for the side of an image.
    """
    rooms: dict[int, float] = {}
    low, high = smallest - 1, most + 1  # the largest that fits, the smallest that does not
    widths = [high - low]
    value, step = start, 1
    while low + 1 < high:
        rooms[value] = room(value)
        fits = rooms[value] >= 0
        low, high = (value, high) if fits else (low, value)
        widths.append(high - low)
        if high <= most and len(widths) > 3 and widths[-1] > widths[-4] / 2:
            value, step = (low + high) // 2, 1
            continue
        guess = _interpolated(rooms, low, high, most, power)
        # A guess that is wrong by a few is corrected on its side, in growing steps.
        value = max(guess, low + step) if fits else min(guess, high - step)
        step = 1 if value == guess else 2 * step
        value = min(max(value, low + 1), high - 1)
    return low if low >= smallest else None


def _interpolated(rooms: dict[int, float], low: int, high: int, most: int, power: float) -> int:
    """Return the value at which a line through two tried values reaches zero, rounded down.

    The two are those of least room, or `low` and `high`, or those of least and most room: the first pair whose line
    reaches zero between `low` and `high`, or anywhere above `low` while every value fits. Without such a pair, return
    the middle or a multiple of `low`.
    """
    known = sorted((value for value, room in rooms.items() if math.isfinite(room)), key=lambda one: abs(rooms[one]))
    is_bounded = high <= most
    for pair in (known[:2], [low, high], [*known[:1], *known[-1:]]):
        first, last = min(pair, default=0), max(pair, default=0)
        if first in known and last in known and rooms[first] > rooms[last]:
            at, until = first**power, last**power
            full = at + (until - at) * rooms[first] / (rooms[first] - rooms[last])
            zero = int(max(full, 0.0) ** (1 / power))
            if not is_bounded and zero >= low:
                return min(zero, int(_GROWTH ** (1 / power) * low), most)
            if low <= zero < high:
                return zero
    return (low + high) // 2 if is_bounded else min(round(_FIRST_GROWTH ** (1 / power) * max(low, 1)), most)


def smallest_taken(run: Callable[[int], object], smallest: int, most: int) -> int:
    """Return the first supported value of `smallest`, 2 * `smallest`, 4 * `smallest` and so on.

    Some networks need more: a batch norm may need two samples.

    `run` raises an error if the network does not support a value.

    Raises:
        Exception: error of the last value; a UserError ends the search.
    """
    value = smallest
    while True:
        try:
            run(value)
        except UserError:
            raise
        except Exception:
            if 2 * value > most:
                raise
            value *= 2
        else:
            return value
