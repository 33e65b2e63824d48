"""Stack sampler: a thread samples the line that the program runs. No torch in here."""

import ctypes
import operator
import os
import sys
import sysconfig
import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from types import CodeType, FrameType
from typing import Any

from charact.core.running_frame import frame_reader
from charact.measure.script.spans.event_log import EventLogWriter
from charact.measure.script.spans.iterations import Iteration
from charact.measure.script.spans.recorder import Kind, SpanRecorder
from charact.record.schema import SAMPLED_PHASES

INTERVAL_S = 0.01
SPARSE_INTERVAL_S = 0.1
"""Interval without `--sample`: enough to name the largest parts of a phase."""
_MIN_SPARSE = 5
"""Minimum number of samples from which a line is named, unless `--sample` asks for all."""
MAX_SAMPLES = 500_000
"""Maximum number of samples, some 80 minutes of them; enough for shares within 0.1 %."""
NUM_KEPT = 20
_MUCH_FRAC = 0.1
"""Share of the time above which the lines of a phase are named without `--sample`."""
_SWITCH_S = 5e-6
"""Switch interval while the sampler waits for the time of a sample.

By default, a thread that waits gets the GIL after 5 ms, or when the other one releases it. So it would see mostly the
lines that release it, such as a read, and hardly those that compute in Python.
"""
_LEAD_S = 0.006
"""Time before a sample at which the sampler takes the GIL to shorten the switch interval: more than the default one."""
_SPREAD = 0.2
"""Largest random part of the time between two samples, so that they do not follow the program's own period."""
_PR_SET_TIMERSLACK = 29
"""From linux/prctl.h."""
_WRITE_S = 1.0
_LIBRARIES = tuple({os.path.join(sysconfig.get_path(name), "")
                    for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_PACKAGES = tuple(os.path.join("", name, "") for name in ("site-packages", "dist-packages"))
"""Folders of installed packages, also of a user or of another environment on the path."""
_CHARACT = os.path.join(str(Path(__file__).parents[3]), "")
_WRAPPERS = os.path.join(str(Path(__file__).parents[1] / "hooks"), "")
"""Charact's frames that call the program's own code."""

_SAMPLED_KINDS = (None, Kind.FETCH, Kind.FORWARD, Kind.LOSS)
"""Kinds of spans in which the program's own lines show where the time goes; None outside of all spans.

A backward or a step runs inside of PyTorch, whichever line started it.
"""
_IMPORTS = "<frozen importlib._bootstrap>"
"""File of the frames that import a Python module."""
_CALLS_MODULE = "torch.nn.modules.module"
"""Python module whose functions call the forward of every `nn.Module`: not worth naming."""

CodeLocation = tuple[str, str, str | None]
"""File and line of the program's own code, its function, and what it calls or imports of a library."""


class FrameSampler:
    """Samples the stack of the thread that starts it, while it is in a span of `_SAMPLED_KINDS`.

    *Error*: the thread needs the GIL, so each call that releases it also gets the samples of the moment before, for at
    most the recorded delay: the time until this thread has woken up and has the GIL. On Linux (2 cores, some 400
    samples each, standard error 2 %), with a delay of 20 µs, a call that takes 20 of each 270 µs (8 %) had 11 %, one
    that takes 5 of each 55 µs (10 %) 22 %, and one that takes 20 of 25 ms (77 %) 77 %. While other programs kept all
    cores busy (delay 0.2 to 1.3 ms), the first had 16 % of the samples for 9 % of the time. Calls that keep the GIL
    were right within the standard error everywhere. The thread uses 0.2 % of a CPU core, at 10 ms 0.6 %, or 2 to 4 %
    while all cores are busy.

    Args:
        recorder: of the program's spans.
        event_log: takes the notes.
        interval_s: time between two samples.
    """

    def __init__(self, recorder: SpanRecorder, event_log: EventLogWriter, interval_s: float = INTERVAL_S) -> None:
        self._recorder, self._event_log, self._interval_s = recorder, event_log, interval_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="charact-sampler", daemon=True)
        self._program: threading.Thread | None = None
        self._frame: Callable[[], FrameType] | None = None
        """Returns the frame that the program's thread runs."""
        self._numbers: dict[CodeLocation, int] = {}
        self._new: list[CodeLocation] = []
        self._samples: list[tuple[int, int]] = []
        self._num_samples = 0
        self._delays_s: list[float] = []
        self._own_switch_s: float | None = None
        """The process's switch interval while it is shortened."""
        self._random = Random(0)  # of its own: the program's generators stay as they are
        self._error: Exception | None = None

    def start(self) -> None:
        """Start to sample the calling thread."""
        self._program, self._frame = threading.current_thread(), frame_reader()
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

    def _watch(self) -> None:
        try:
            _set_short_timer_slack()
            written = time.monotonic()
            due_s = written + self._interval_s
            while self._num_samples < MAX_SAMPLES and not self._ended.wait(due_s - _LEAD_S - time.monotonic()):
                sample = self._look(due_s) if self._recorder.on else None
                due_s += self._next_s()
                while due_s < time.monotonic():  # the program kept the GIL at the same line
                    self._add(sample)
                    due_s += self._next_s()
                if self._samples and time.monotonic() - written > _WRITE_S:
                    self._write()
                    written = time.monotonic()
        except Exception as error:  # raised by `check` in the program's thread
            self._error = error

    def _next_s(self) -> float:
        return self._interval_s * self._random.uniform(1 - _SPREAD, 1 + _SPREAD)

    def _look(self, due_s: float) -> int | None:
        """Take a sample at a time; return the number of its location, or None if the program is in none."""
        frame, progress = self._frame_at(due_s), self._recorder.progress
        location = None if frame is None or not self._is_sampled() else location_of(frame)
        if location is None or self._recorder.progress != progress:
            return None  # the program ran on while its stack was read
        if location not in self._numbers:
            self._numbers[location] = len(self._numbers)
            self._new.append(location)
        self._add(self._numbers[location])
        return self._numbers[location]

    def _add(self, number: int | None) -> None:
        if number is not None and self._num_samples < MAX_SAMPLES:
            self._samples.append((time.perf_counter_ns(), number))
            self._num_samples += 1

    def _frame_at(self, due_s: float) -> FrameType | None:
        """Return the frame that the program's thread runs at a time, whichever line it is.

        The time is chosen before this thread has the GIL, or it would depend on when the program releases it. Until
        then the switch interval of the whole process is short, so that this thread gets the GIL within microseconds;
        afterwards it is the process's own again, so that it keeps the GIL. `map` calls all in C: between two lines of
        Python the program's thread could run on.
        """
        if self._frame is None or self._program is None or not self._program.is_alive():
            return None
        wait_s = due_s - time.monotonic()
        if wait_s <= 0:  # the program kept the GIL, and is still at the same line
            return self._frame()
        self._own_switch_s = sys.getswitchinterval()
        calls: list[Callable[[], Any]] = [partial(time.sleep, wait_s),
                                          partial(sys.setswitchinterval, self._own_switch_s),
                                          time.monotonic, self._frame]
        sys.setswitchinterval(_SWITCH_S)
        try:
            _, _, now_s, frame = map(operator.call, calls)
        finally:
            self.restore_switch_interval()
        self._delays_s.append(now_s - due_s)
        found: FrameType = frame
        return found

    def restore_switch_interval(self) -> None:
        """Give the process its own interval again; also in a child that was forked meanwhile."""
        if self._own_switch_s is not None:
            sys.setswitchinterval(self._own_switch_s)
        self._own_switch_s = None

    def _is_sampled(self) -> bool:
        return self._recorder.top in _SAMPLED_KINDS

    def _write(self) -> None:
        locations, samples = self._new, self._samples
        delay = {"delay_s": median(self._delays_s)} if self._delays_s else {}
        self._new, self._samples, self._delays_s = [], [], []
        self._event_log.notes([{"note": "frames", "places": locations, "samples": samples,
                                "interval_s": self._interval_s, **delay}])


def _set_short_timer_slack() -> None:
    """Let short waits of this thread end on time: Linux adds 50 µs to them by default."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)


def location_of(frame: FrameType) -> CodeLocation | None:
    """Return the innermost line of the program's own code, its function, and the library call or import in it.

    None if charact's own work was running, or if the stack has no code of the program. Own code is outside of Python's
    library and the installed packages; the main module always counts as own code. Of nested calls in a library, it is
    the one that the own line made. Files below the main module's directory have a relative path.
    """
    library: CodeType | None = None
    module = imported = ""
    current: FrameType | None = frame
    while current is not None:
        code = current.f_code
        name = current.f_globals.get("__name__", "")
        if code.co_filename == _IMPORTS:
            imported = str(current.f_locals.get("name")) if code.co_name == "_find_and_load" else imported
        elif name == "__main__" or not _is_library(code.co_filename):
            called = "" if library is None else f"{module}.{library.co_qualname}"
            calls = ", ".join(filter(None, [called, imported and f"importing {imported}"]))
            return f"{_short(code.co_filename)}:{current.f_lineno}", code.co_qualname, calls or None
        elif not code.co_filename.startswith(_CHARACT):
            if library is None or name != _CALLS_MODULE:
                library, module = code, name
        elif not code.co_filename.startswith(_WRAPPERS):
            return None  # charact's own work, such as reading the use of the cores
        current = current.f_back
    return None


def _is_library(path: str) -> bool:
    """Return whether a file belongs to Python's library, an installed package or charact."""
    return path.startswith((*_LIBRARIES, _CHARACT, "<")) or any(folder in path for folder in _PACKAGES)


def _short(path: str) -> str:
    """Return a path relative to the main module's directory, if it is below."""
    root = os.path.join(sys.path[0], "") if sys.path else ""
    return path.removeprefix(root) if root else path


class Samples:
    """Stack samples of an event log."""

    def __init__(self) -> None:
        self.interval_s: float | None = None
        """Time between two samples; None if no sampler ran."""
        self._locations: list[CodeLocation] = []
        self._samples: list[tuple[int, int]] = []
        self._delays_s: list[float] = []

    def add(self, note: dict[str, Any]) -> None:
        """Add the samples of a note."""
        self.interval_s = note.get("interval_s", INTERVAL_S)
        self._locations += [(location, function, library) for location, function, library in note["places"]]
        self._samples += [(time_ns, number) for time_ns, number in note["samples"]]
        self._delays_s += [note["delay_s"]] if "delay_s" in note else []

    def facts(self, iterations: Sequence[Iteration], every: Sequence[Iteration], phase_fracs: Mapping[str, float]
              ) -> dict[str, Any] | None:
        """Return the facts of the pass `frames` of a case: for each phase, the lines with most samples.

        Each of `SAMPLED_PHASES` with a known share has its number of samples and at most `NUM_KEPT` lines. Without
        `--sample`, phases that take at most 10 % of the time are left out, and lines of a phase with fewer than 5
        samples are not named. None if no sampler ran, or if no phase is left.

        Args:
            iterations: those of the case, in order.
            every: all iterations of the program, in order; a sample in none of them counts as `outside`.
            phase_fracs: share (0 to 1) of the time in each phase; for `outside`, of the program's time.
        """
        if self.interval_s is None:
            return None
        counts = {phase: Counter[int]() for phase in SAMPLED_PHASES if phase in phase_fracs}
        for time_ns, number in self._samples:
            phase = _phase_at(time_ns, iterations) or ("outside" if _at(time_ns, every) is None else None)
            if number < len(self._locations) and phase in counts:
                counts[phase][number] += 1
        sparse = self.interval_s > INTERVAL_S
        if sparse:
            counts = {phase: found for phase, found in counts.items() if phase_fracs[phase] > _MUCH_FRAC}
        if not counts:
            return None
        facts: dict[str, Any] = {"status": "ok", "reason": None, "interval_s": self.interval_s,
                                 "delay_s": median(self._delays_s) if self._delays_s else None}
        for phase, found in counts.items():
            num_samples, frames = SAMPLED_PHASES[phase]
            few = sparse and found.total() < _MIN_SPARSE
            facts |= {num_samples: found.total(), frames: [] if few else self._most(found)}
        return facts

    def most_frequent(self, spans: Sequence[tuple[int, int]]) -> str | None:
        """Return the line with most samples in given intervals, as text: `train.py:39 in load`.

        None if there are fewer than 5 samples in them.

        Args:
            spans: start and end (ns) of each interval, sorted by start, without overlap.
        """
        counts: Counter[tuple[str, str]] = Counter()
        for time_ns, number in self._samples:
            index = bisect_right(spans, time_ns, key=lambda span: span[0]) - 1
            if index >= 0 and time_ns < spans[index][1] and number < len(self._locations):
                counts[self._locations[number][:2]] += 1
        if counts.total() < _MIN_SPARSE:
            return None
        place, function = counts.most_common(1)[0][0]
        return f"{place} in {function}"

    def _most(self, counts: Counter[int]) -> list[dict[str, Any]]:
        return [
            dict(zip(("place", "function", "library"), self._locations[number], strict=True)) | {"num_samples": count}
            for number, count in counts.most_common(NUM_KEPT)
        ]


def _phase_at(time_ns: int, iterations: Sequence[Iteration]) -> str | None:
    """Return the phase of an iteration at a time, `other` between its intervals; None outside of the iterations."""
    iteration = _at(time_ns, iterations)
    if iteration is None:
        return None
    return next((one.phase for one in iteration.intervals if one.start_ns <= time_ns < one.end_ns), "other")


def _at(time_ns: int, iterations: Sequence[Iteration]) -> Iteration | None:
    """Return the iteration at a time; None outside of all."""
    index = bisect_right(iterations, time_ns, key=lambda one: one.start_ns) - 1
    return iterations[index] if index >= 0 and time_ns < iterations[index].end_ns else None
