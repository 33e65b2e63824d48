"""Precision of a profiled program's timing: when enough iterations were timed for the passes to run."""

from itertools import pairwise
from time import perf_counter_ns

from charact.core.statistics import median_interval

_WARMUP, _FEWEST, _MOST = 3, 10, 20
"""Iterations at the start that do not count; least and most that are timed before the passes (more follow later)."""
_LONG_ENOUGH = (9, 1.0), (4, 3.0)
"""Numbers of iterations that are enough if they took so many seconds: a program may have few long iterations."""
_TARGET_FRAC = 0.02
"""Half the width of the median's 95 % interval over the median, at which the timing is precise enough."""


class TimingPrecision:
    """Rough times of iterations, from end to end, until their median is precise, or they are many or long.

    Args:
        in_step: whether other ranks decide, too: then always `_MOST` are timed, so that all decide alike.
    """

    def __init__(self, *, in_step: bool = False) -> None:
        self._in_step = in_step
        self._ends_ns: list[int] = []
        self._is_enough = False

    def is_enough(self, *, iteration_ended: bool) -> bool:
        """Return whether the passes may run: the median is precise, or the iterations are many or long.

        Call it at every boundary. It decides only at the end of an iteration; once True, the result stays True.
        """
        if not self._is_enough and iteration_ended:
            self._ends_ns.append(perf_counter_ns())
            self._is_enough = self._decide()
        return self._is_enough

    def _decide(self) -> bool:
        passed_s = (self._ends_ns[-1] - self._ends_ns[0]) / 1e9
        if not self._in_step and any(
                len(self._ends_ns) >= fewest and passed_s >= least_s for fewest, least_s in _LONG_ENOUGH):
            return True
        ends = self._ends_ns[_WARMUP:]
        times = [after - before for before, after in pairwise(ends)]
        if len(times) < _FEWEST or len(times) % 5:
            return False
        if self._in_step or len(times) >= _MOST:
            return len(times) >= _MOST
        interval = median_interval(times)
        return (
            interval is not None and interval[1] - interval[0] <= _TARGET_FRAC * (interval[1] + interval[0]))
