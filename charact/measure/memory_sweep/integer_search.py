"""Searching for the largest batch or input that fits."""

from collections.abc import Callable

from charact.core.errors import UserError


def largest_fitting(fits: Callable[[int], bool], smallest: int, start: int, most: int) -> int | None:
    """Largest value from `smallest` to `most` that fits; None where not even the smallest does.

    Doubles the value until one does not fit, then halves what lies between. That what fits gets no larger beyond a
    value that does not is assumed, but for the value found and the next one: both have been asked for.

    Args:
        fits: whether a value fits; asked of each value once at the most.
        smallest: the first that is allowed.
        start: where to begin, from `smallest` to `most`.
        most: the last that is allowed.
    """
    low, high = smallest - 1, most + 1  # the largest that fits, the smallest that does not
    value = start
    while low + 1 < high:
        if fits(value):
            low = value
        else:
            high = value
        doubling = high == most + 1 and low >= start
        value = min(2 * low, most) if doubling else (low + high) // 2
    return low if low >= smallest else None


def smallest_taken(run: Callable[[int], object], smallest: int, most: int) -> int:
    """The first of `smallest` and its doubles that a network takes: a batch norm may refuse a single sample.

    Args:
        run: raises where the network does not take a value.
        smallest: the first that is allowed.
        most: the last that is tried.

    Raises:
        Exception: what the last raised that was tried; of a UserError none larger is.
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
