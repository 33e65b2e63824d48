"""Time left in a sweep, from the cases that have ended."""

import time
from collections.abc import Sequence
from statistics import fmean

from charact.core.observer import Observer
from charact.execution.case import Case


class TimeLeft:
    """Reports the time left before each case.

    The first case of a model takes longer: its program is built, and its operators are not yet in a cache.
    """

    def __init__(self, cases: Sequence[Case], observer: Observer) -> None:
        # What cases have in common that share a program.
        families = [(id(case.workload), case.mode, case.precision, case.data, case.accumulate, case.parallel,
                     case.num_ranks) for case in cases]
        self._are_first = [family not in families[:number] for number, family in enumerate(families)]
        self._observer = observer
        self._durations_s: list[float] = []
        self._started_s: float | None = None

    def case_starts(self) -> None:
        """Report the time left; the previous case has ended."""
        now_s = time.monotonic()
        if self._started_s is not None:
            self._durations_s.append(now_s - self._started_s)
            self._observer.time_left(self._left_s())
        self._started_s = now_s

    def _left_s(self) -> float:
        ended = list(zip(self._are_first, self._durations_s, strict=False))
        mean_s = {kind: [duration_s for is_first, duration_s in ended if is_first == kind] for kind in (True, False)}
        first_s, later_s = (fmean(mean_s[kind] or self._durations_s) for kind in (True, False))
        return sum(first_s if is_first else later_s for is_first in self._are_first[len(self._durations_s):])
