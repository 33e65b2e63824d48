"""Integer searches for the largest batch size or input size that fits."""

from collections.abc import Callable

from charact.core.errors import UserError


def largest_fitting(fits: Callable[[int], bool], smallest: int, start: int, most: int) -> int | None:
    """Return the largest value from `smallest` to `most` that fits, or None.

    Doubles the value until one does not fit, then bisects. This assumes that fitting is monotonic; the value found and
    the next one are always checked.

    Args:
        fits: returns whether a value fits; called at most once per value.
        smallest: lower limit.
        start: first value to try, from `smallest` to `most`.
        most: upper limit.
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
    """Return the first of `smallest` and its doublings that a network supports: a batch norm may need two samples.

    Args:
        run: raises an error if the network does not support a value.
        smallest: first value to try.
        most: upper limit.

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
