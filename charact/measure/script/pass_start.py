"""Start of the passes in a profiled program: after some iterations of timing. More are timed after the passes."""

from time import perf_counter_ns

_MOST = 13
"""Number of iterations before the passes: these take 7, so that a script of 20 steps has all of them."""
_LONG_ENOUGH = (9, 1.0), (4, 3.0)
"""Numbers of iterations that are enough if they took so many seconds: a program may have few long iterations."""


class PassStart:
    """Counts iterations until the passes begin.

    Args:
        in_step: whether other ranks decide, too: then always `_MOST` are timed, so that all decide alike.
    """

    def __init__(self, *, in_step: bool = False) -> None:
        self._in_step = in_step
        self._num_iterations = self._first_end_ns = 0
        self._is_reached = False

    def is_reached(self, *, iteration_ended: bool) -> bool:
        """Return whether the passes may run: iterations were many or long.

        Call it at every boundary. It decides only at the end of an iteration; once True, the result stays True.
        """
        if not self._is_reached and iteration_ended:
            now_ns = perf_counter_ns()
            self._num_iterations += 1
            if self._num_iterations == 1:
                self._first_end_ns = now_ns
            passed_s = (now_ns - self._first_end_ns) / 1e9
            self._is_reached = self._num_iterations >= _MOST or (not self._in_step and any(
                self._num_iterations >= fewest and passed_s >= least_s for fewest, least_s in _LONG_ENOUGH))
        return self._is_reached
