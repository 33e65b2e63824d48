"""Stack sampler: a thread samples the line that the program runs, and whether it waits there. No torch in here."""

import contextlib
import ctypes
import dis
import os
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from functools import partial
from random import Random
from statistics import median
from types import CodeType, FrameType
from typing import Any, NamedTuple

from charact.core.running_stack import StackReader
from charact.measure.script.program.frames import CodeLocation, frames_from, line_of, location_of
from charact.measure.script.spans.event_log import EventLogWriter
from charact.measure.script.spans.recorder import Kind, SpanRecorder

INTERVAL_S = 0.01
SPARSE_INTERVAL_S = 0.1
"""Interval without `--sample`: enough to name the largest parts of a phase."""
MAX_SAMPLES = 500_000
"""Maximum number of samples, some 80 minutes of them; enough for shares within 0.1 %."""
_SWITCH_S = 5e-6
"""Switch interval while the sampler waits for the time of a sample.

By default, a thread that waits gets the GIL after 5 ms, or when the other one releases it. So it would see mostly the
lines that release it, such as a read, and hardly those that compute in Python.
"""
_LEAD_S = 0.006
"""Time before a sample at which the sampler takes the GIL to shorten the switch interval: more than the default one."""
_SHORTEST_S = 0.002
"""Shortest time before a sample over which it is measured whether the program waits; else it is since the last one."""
_SPREAD = 0.2
"""Largest random part of the time between two samples, so that they do not follow the program's own period."""
_PR_SET_TIMERSLACK = 29
"""From linux/prctl.h."""
_NUM_NOTED = 3
"""Number of events of a kind whose stacks are noted."""
_WRITE_S, _LONGEST_S = 1.0, 3.0
"""Time between two writes of samples: the longest one until the loops of the program are known."""
_SAMPLED_KINDS = (None, Kind.FETCH, Kind.FORWARD, Kind.LOSS, Kind.BACKWARD, Kind.STEP)
"""Kinds of spans in which the program's own lines show where the time goes; None outside of all spans."""
_RUNS_FRAC = 0.9
"""Share of a time from which a thread that used the processor did not wait."""
_MOST_BYTES = 4096


class ClockReading(NamedTuple):
    """Times (ns): of the reading, of the processor that the thread used, and for which it had none but wanted one.

    The last is None if it was not read.
    """

    time_ns: int
    used_ns: int
    refused_ns: int | None


class ThreadClock:
    """Clock of the thread that creates it.

    *Error*: while all cores are busy, a thread that has just woken up counts as waiting until it runs.
    """

    def __init__(self) -> None:
        self._clock: int | None = None
        with contextlib.suppress(AttributeError, OSError):  # the system has no such clock
            self._clock = time.pthread_getcpuclockid(threading.get_ident())
        folder = f"/proc/self/task/{threading.get_native_id()}"
        self._schedstat, self._stat = _KernelFile(f"{folder}/schedstat"), _KernelFile(f"{folder}/stat")

    def used_ns(self) -> int | None:
        """Return the processor time that the thread has used; None if unknown. It keeps the GIL."""
        return None if self._clock is None else time.clock_gettime_ns(self._clock)

    def read(self) -> ClockReading | None:
        """Return the times until now; None if unknown. It keeps the GIL."""
        used_ns = self.used_ns()
        return None if used_ns is None else ClockReading(time.monotonic_ns(), used_ns, self._refused_ns())

    def waiting_frac(self, since: ClockReading, until: ClockReading) -> float:
        """Return the share of the time between two readings in which the thread waited for something but a processor.

        Call it soon after the second.
        """
        elapsed_ns = max(1, until.time_ns - since.time_ns)
        idle_ns = elapsed_ns - (until.used_ns - since.used_ns)
        if idle_ns < (1 - _RUNS_FRAC) * elapsed_ns or (  # it is runnable; the name before its state may have spaces
                self._stat.read().rpartition(b")")[2].split()[:1] == [b"R"]):
            return 0.0
        refused_ns = self._refused_ns()
        if refused_ns is not None and since.refused_ns is not None:
            idle_ns -= refused_ns - since.refused_ns
        return min(1.0, max(0.0, idle_ns / elapsed_ns))

    def _refused_ns(self) -> int | None:
        fields = self._schedstat.read().split()
        return int(fields[1]) if len(fields) > 1 and fields[1].isdigit() else None

    def close(self) -> None:
        """Close its files; afterwards, `read` and `waiting_frac` know less."""
        self._schedstat.close()
        self._stat.close()


class _KernelFile:
    """A file of Linux's /proc, which is read without releasing the GIL: another thread does not run meanwhile."""

    def __init__(self, path: str) -> None:
        self._file: int | None = None
        with contextlib.suppress(OSError):
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._buffer = ctypes.create_string_buffer(_MOST_BYTES)
            self._pread = ctypes.PyDLL(None).pread
            self._pread.argtypes = ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_long
            self._pread.restype = ctypes.c_ssize_t

    def read(self) -> bytes:
        """Return the file's content; empty if it cannot be read."""
        if self._file is None:
            return b""
        num_bytes = self._pread(self._file, self._buffer, _MOST_BYTES, 0)
        return self._buffer.raw[:max(0, num_bytes)]

    def close(self) -> None:
        """Close the file; afterwards it is empty."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


class FrameSampler:
    """Samples the stack of the thread that starts it, while it is in a span of `_SAMPLED_KINDS`.

    *Error*: the thread needs the GIL, so each call that releases it also gets the samples of the moment before, for at
    most the recorded delay: the time until this thread has woken up and has the GIL. On Linux (2 cores, some 400
    samples each, standard error 2 %), with a delay of 20 µs, a call that takes 20 of each 270 µs (8 %) had 11 %, one
    that takes 5 of each 55 µs (10 %) 22 %, and one that takes 20 of 25 ms (77 %) 77 %. While other programs kept all
    cores busy (delay 0.2 to 1.3 ms), the first had 16 % of the samples for 9 % of the time. Calls that keep the GIL
    were right within the standard error everywhere. The thread uses 0.2 % of a CPU core, at 10 ms 0.6 %, or 2 to 4 %
    while all cores are busy.

    After each sample, the thread calls `between_samples`, which returns whether it did something.
    """

    def __init__(self, recorder: SpanRecorder, event_log: EventLogWriter, interval_s: float = INTERVAL_S,
                 between_samples: Callable[[], bool] = lambda: False) -> None:
        self._recorder, self._event_log, self._interval_s = recorder, event_log, interval_s
        self._between_samples = between_samples
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="charact-sampler", daemon=True)
        self._program: threading.Thread | None = None
        self._stack: StackReader | None = None
        self._numbers: dict[CodeLocation, int] = {}
        self._new: list[tuple[CodeLocation, str | None, tuple[CodeType, int] | None]] = []
        """New locations, each with the text of its line, and its code and line number."""
        self.loops = CodeLoops()
        """Loops of the program, which are noted at the ends of its iterations and fetches."""
        self._samples: list[tuple[int, int, float | None]] = []
        """Time and location of each sample, and the share of the time before in which the program's thread waited."""
        self._clock: ThreadClock | None = None
        self._before: ClockReading | None = None
        """Reading some milliseconds before a sample."""
        self._at_sample: ClockReading | None = None
        self._at_sample_frac: float | None = None
        self._num_samples = 0
        self._delays_s: list[float] = []
        self._own_switch_s: float | None = None
        """The process's switch interval while it is shortened."""
        self._random = Random(0)  # of its own: the program's generators stay as they are
        self._error: Exception | None = None

    def start(self) -> None:
        """Start to sample the calling thread."""
        self._program, self._stack, self._clock = threading.current_thread(), StackReader(), ThreadClock()
        self._write()  # so that the event log mentions the sampler even if there are no samples
        self._thread.start()

    def check(self) -> None:
        """Raise the error of the sampler's thread, if any."""
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Stop, and write the remaining samples."""
        self._ended.set()
        self._thread.join()
        self._write()
        if self._clock is not None:
            self._clock.close()

    def _watch(self) -> None:
        try:
            if sys.platform == "linux":  # which adds 50 µs to short waits by default
                ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)
            written = time.monotonic()
            due_s = written + self._interval_s
            while self._num_samples < MAX_SAMPLES and not self._ended.wait(due_s - _LEAD_S - time.monotonic()):
                sample = self._look(due_s) if self._recorder.on else None
                due_s += self._next_s()
                waiting_frac = self._waiting_at(due_s) if due_s < time.monotonic() else None
                while due_s < time.monotonic():  # the program kept the GIL at the same line
                    self._add(sample, waiting_frac)
                    due_s += self._next_s()
                took_time = self._recorder.on and self._between_samples()
                if time.monotonic() - written > (_WRITE_S if self.loops.are_known else _LONGEST_S):
                    if self._samples:
                        self._write()
                    written, took_time = time.monotonic(), True
                if took_time:
                    due_s = max(due_s, time.monotonic() + _LEAD_S)
        except Exception as error:  # raised by `check` in the program's thread
            self._error = error

    def _next_s(self) -> float:
        return self._interval_s * self._random.uniform(1 - _SPREAD, 1 + _SPREAD)

    def _look(self, due_s: float) -> int | None:
        """Take a sample at a time; return the number of its location, or None if the program is in none."""
        frames, changed_ns = self._frames_at(due_s), self._recorder.changed_ns
        instruction = frames[0].f_lasti if frames else None
        location = location_of(frames) if self._recorder.top in _SAMPLED_KINDS else None
        if self._at_sample is None and self._clock is not None:
            self._at_sample = self._clock.read()
        if location is None or self._stack is None or self._recorder.changed_ns != changed_ns or (
                self._stack.read(most=1)[0][0] is not frames[0] or frames[0].f_lasti != instruction):
            return None  # the program ran on while its stack was read: outer frames may be at later lines
        now_ns = time.perf_counter_ns()
        self._at_sample_frac = waiting_frac = self._waiting_frac(self._before, self._at_sample)
        if location not in self._numbers:
            self._numbers[location] = len(self._numbers)
            self._new.append((location, *line_of(frames, location)))
        self._add(self._numbers[location], waiting_frac, now_ns)
        return self._numbers[location]

    def _add(self, number: int | None, waiting_frac: float | None, time_ns: int | None = None) -> None:
        if number is not None and self._num_samples < MAX_SAMPLES:
            self._samples.append((time.perf_counter_ns() if time_ns is None else time_ns, number, waiting_frac))
            self._num_samples += 1

    def _waiting_at(self, due_s: float) -> float | None:
        """Return the share for a sample that was due at a time at which the program kept the GIL.

        If the last sample had to wait for the GIL until after that, its share is that of this time, too.
        """
        if self._at_sample is not None and due_s * 1e9 <= self._at_sample.time_ns:
            return self._at_sample_frac
        return None if self._clock is None else self._waiting_frac(self._at_sample, self._clock.read())

    def _waiting_frac(self, since: ClockReading | None, until: ClockReading | None) -> float | None:
        if self._clock is None or since is None or until is None or until.time_ns <= since.time_ns:
            return None
        return round(self._clock.waiting_frac(since, until), 2)

    def _frames_at(self, due_s: float) -> list[FrameType]:
        """Return the frames that the program's thread runs at a time, the innermost first, whichever line it is.

        The time is chosen before this thread has the GIL, or it would depend on when the program releases it. Until
        then the switch interval of the whole process is short, so that this thread gets the GIL within microseconds;
        afterwards it is the process's own again, so that it keeps the GIL.
        """
        if self._stack is None or self._program is None or not self._program.is_alive():
            return []
        assert self._clock is not None
        wait_s = due_s - time.monotonic()
        self._before = self._at_sample
        if wait_s >= _SHORTEST_S:
            self._before = self._clock.read()
        if wait_s <= 0:  # the program kept the GIL, and is still at the same line
            self._at_sample = None
            return self._stack.read()[0]
        self._own_switch_s = sys.getswitchinterval()
        calls: list[Callable[[], Any]] = [partial(time.sleep, wait_s),
                                          partial(sys.setswitchinterval, self._own_switch_s), time.monotonic]
        sys.setswitchinterval(_SWITCH_S)
        try:
            frames, (_, _, now_s) = self._stack.read(calls)
        finally:
            self.restore_switch_interval()
        used_ns = self._clock.used_ns()
        self._at_sample = None if used_ns is None else ClockReading(time.monotonic_ns(), used_ns, None)
        self._delays_s.append(now_s - due_s)
        return frames

    def restore_switch_interval(self) -> None:
        """Give the process its own interval again; also in a child that was forked meanwhile."""
        if self._own_switch_s is not None:
            sys.setswitchinterval(self._own_switch_s)
        self._own_switch_s = None

    def _write(self) -> None:
        new, samples, delays_s = self._new, self._samples, self._delays_s
        self._new, self._samples, self._delays_s = [], [], []
        self._event_log.notes([{
            "note": "frames", "interval_s": self._interval_s, "places": [location for location, _, _ in new],
            "texts": [text for _, text, _ in new],
            "loops": [None if line is None else self.loops.is_inside(*line) for _, _, line in new],
            "samples": [sample[:2] for sample in samples], "waiting": [waiting_frac for _, _, waiting_frac in samples],
            **({"delay_s": median(delays_s)} if delays_s else {})}])


class CodeLoops:
    """Tells loops inside of an iteration from the loops over iterations and batches.

    The latter are those that run when an iteration or a fetch ends.
    """

    def __init__(self) -> None:
        self._calls: dict[CodeType, set[int]] = defaultdict(set)
        """Offsets of the calls that ended an iteration or fetched a batch, by the function that made them."""
        self._num_events: Counter[Hashable] = Counter()

    @property
    def are_known(self) -> bool:
        """Whether an iteration or a fetch has ended."""
        return bool(self._calls)

    def note(self, event: Hashable) -> None:
        """Note the running functions at the end of an iteration or a fetch; only the first events of a kind count."""
        if self._num_events[event] >= _NUM_NOTED:
            return
        self._num_events[event] += 1
        for frame in frames_from(sys._getframe(1)):
            self._calls[frame.f_code].add(frame.f_lasti)

    def is_inside(self, code: CodeType, line: int) -> bool:
        """Return whether a function's line is in a loop inside of an iteration, or in a comprehension."""
        calls = self._calls.get(code, set())
        loops = [(jump.argval, jump.offset) for jump in dis.get_instructions(code) if "JUMP_BACKWARD" in jump.opname]
        inner = [(begin, end) for begin, end in loops if not any(begin <= call <= end for call in calls)]
        starts = [start for start, _, number in code.co_lines() if number == line]
        return any(begin <= start <= end for begin, end in inner for start in starts)
