"""Recorder of windows: it finds the iterations of a long program as they end, and counts their times. No torch in here.

The rules for iterations and phases are those of the event log's reader, with two differences: cycles of several steps
are recognized from the last cycles only (`CycleJoiner`), and waiting for other ranks inside a backward counts as
backward. An iteration counts in the window in which it is recognized: at the next step, or after up to 256 inferences.
"""

from collections import deque
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from charact.measure.script.spans.iteration_segmenter import Segmenter
from charact.measure.script.spans.iterations import Segment, StepCounter
from charact.measure.script.spans.recorder import Slice
from charact.measure.script.windows.cycle_joiner import CycleJoiner
from charact.measure.script.windows.phase_times import IterationTimes, PhaseTimes
from charact.measure.script.windows.repeats import Repeats
from charact.measure.script.windows.window import Window
from charact.measure.script.windows.window_log import Latest, Second, WindowLog

_MOST_PENDING = 100_000
"""Largest number of slices of an iteration; a longer one is not recorded."""
_FEWEST_REPEATS = 4
"""Smallest number of iterations that are counted at once."""
_SECOND_NS = 1_000_000_000
_NUM_SECONDS = 10


class WindowRecorder:
    """Records the iterations of a program from now on, in windows of time.

    The iteration that runs now is not recorded, since its start is in the event log.

    Args:
        directory: of the event log.
        steps: has counted the program's steps so far.
        memory_bytes: returns the resident set and the bytes in the device's allocator; None if not known.
        clock: returns the time (ns) of the slices' clock.
    """

    def __init__(self, directory: Path, steps: StepCounter, memory_bytes: Callable[[], tuple[int | None, int | None]],
                 clock: Callable[[], int] = perf_counter_ns) -> None:
        self._log, self._memory_bytes, self._clock = WindowLog(directory), memory_bytes, clock
        self._segmenter, self._times, self._joiner = Segmenter(), PhaseTimes(), CycleJoiner(steps)
        self._is_cut = True
        """Whether the next iteration is the one that began in the event log."""
        self._num_before = 0
        """Number of iterations in earlier windows."""
        now_ns = clock()
        self._window = Window(now_ns, now_ns)
        self._seconds: deque[Second] = deque(maxlen=_NUM_SECONDS)
        self._second_ends_ns = now_ns + _SECOND_NS
        self._before: dict[bool, Second] = {}
        """Numbers and sums of each mode in the window until the second began."""

    def take(self, slices: list[Slice], device_ns: Callable[[Any], int]) -> None:
        """Take slices that have ended on the host and the device; `device_ns` returns the time of a device's event."""
        for each in slices:
            if each.start_event is not None:
                each.start_event = device_ns(each.start_event)
            if each.end_event is not None:
                each.end_event = device_ns(each.end_event)
        place, may_repeat = 0, True
        while place < len(slices):
            segments = self._segmenter.take(slices[place])
            place += 1
            for segment in segments:
                for iteration in self._joiner.take(self._times.of(segment)):
                    self._count(iteration)
            length = len(segments[0].slices) if len(segments) == 1 else len(slices)
            if may_repeat and length <= place <= len(slices) - _FEWEST_REPEATS * length:
                num_slices = self._count_repeats(segments[0], slices, place)
                place += num_slices
                may_repeat = num_slices > 0
        if len(self._segmenter.pending) > _MOST_PENDING:
            self._segmenter, self._is_cut = Segmenter(), True
        now_ns = self._clock()
        is_long = now_ns - self._window.start_ns >= self._log.length_ns
        if is_long or now_ns >= self._second_ends_ns:
            self._end_second(now_ns)
        if is_long:
            self._end_window(now_ns)

    def close(self) -> None:
        """Write the last window."""
        iterations = [self._times.of(segment) for segment in self._segmenter.last_segments()]
        for iteration in [each for one in iterations for each in self._joiner.take(one)] + self._joiner.rest():
            self._count(iteration)
        self._end_window(self._clock())

    def _count_repeats(self, ended: Segment, slices: list[Slice], place: int) -> int:
        """Count the iterations from a place on that repeat the one that has just ended, at once.

        What repeats the last two iterations leaves the segmenter and the joiner as they are. So all repeats but the
        last are counted, and the segmenter gets the slices of the last one. Return the number of slices, 0 if none.
        """
        length, pending = len(ended.slices), self._segmenter.pending
        if (not ended.training or self._is_cut or len(pending) != length
                or any(each is not taken for each, taken in zip(pending, slices[place - length:place], strict=True))
                or list(map(_kind, pending)) != list(map(_kind, ended.slices))
                or not self._joiner.passes_on(self._times.of(ended))):
            return 0
        repeats = Repeats(slices[place - length:], length)
        if repeats.number < _FEWEST_REPEATS:
            return 0
        self._window.train.add_all(*repeats.times_ns(self._times.order(ended)))
        reached = place + repeats.number * length
        self._segmenter.skip_to(slices[reached - length:reached])
        return reached - place

    def _count(self, iteration: IterationTimes) -> None:
        if self._is_cut:
            self._is_cut = False
            return
        self._window.of(iteration.training).add(iteration.wall_ns, iteration.phase_ns)

    def _end_second(self, now_ns: int) -> None:
        """Write the state of the program: what the window has gained since the last call is its last second."""
        self._second_ends_ns = now_ns + _SECOND_NS
        for training in (False, True):
            times = self._window.of(training)
            now = Second(training, now_ns, times.num_iterations,
                         {phase: each.sum_ns for phase, each in times.phases.items()})
            before = self._before.get(training, Second(training, now_ns))
            self._before[training] = now
            if now.num_iterations > before.num_iterations:
                self._seconds.append(Second(
                    training, now_ns, now.num_iterations - before.num_iterations,
                    {phase: sum_ns - before.phase_ns.get(phase, 0) for phase, sum_ns in now.phase_ns.items()}))
        self._log.write_latest(Latest(self._num_before + self._window.num_iterations, list(self._seconds)))

    def _end_window(self, now_ns: int) -> None:
        """Write the window, unless no iteration has ended in it."""
        window = self._window
        if not window.num_iterations:
            return
        window.end_ns = now_ns
        window.rss_bytes, window.allocated_bytes = self._memory_bytes()
        self._log.append(window)
        self._num_before += window.num_iterations
        self._window, self._before = Window(now_ns, now_ns), {}


def _kind(each: Slice) -> tuple[object, ...]:
    """Return what a slice and its repeats have in common."""
    return (each.kind, each.owner, each.grad, each.training, each.begins, each.ends, each.phase, each.method,
            each.start_event is None, each.end_event is None)
