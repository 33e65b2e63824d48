"""Where a program is while no phase runs: with `--sample` a thread looks every 10 ms. No torch in here."""

import os
import sys
import sysconfig
import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from charact.measure.script.spans.event_log import SpoolWriter
from charact.measure.script.spans.iterations import Iteration
from charact.measure.script.spans.recorder import SpanRecorder

INTERVAL_S = 0.01
MOST_SAMPLES = 500_000
"""So many are written, of some 80 minutes in `other`; they tell a share to a tenth of a percent."""
NUM_KEPT = 20
_WRITE_S = 1.0
_LIBRARIES = tuple({os.path.join(sysconfig.get_path(name), "")
                    for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_CHARACT = os.path.join(str(Path(__file__).parents[3]), "")

Place = tuple[str, str, str | None]
"""File and line of the program's own code, the function that it is in, and the library's function that it calls."""


class FrameSampler:
    """Notes where the thread that starts it is, every 10 ms, unless a span is open.

    *Error*: the thread needs Python's lock, and so comes late by up to 5 ms where the watched one computes in Python.
    It takes 0.3 to 0.6 % of a processor, and lengthened a loop of small operators by up to 2 % where all were busy.

    Args:
        recorder: tells whether a span is open.
        spool: takes the notes.
    """

    def __init__(self, recorder: SpanRecorder, spool: SpoolWriter) -> None:
        self._recorder, self._spool = recorder, spool
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="charact-sampler", daemon=True)
        self._watched = 0
        self._numbers: dict[Place, int] = {}
        self._new: list[Place] = []
        self._samples: list[tuple[int, int]] = []
        self._num_samples = 0
        self._error: Exception | None = None

    def start(self) -> None:
        """Begin to watch the calling thread."""
        self._watched = threading.get_ident()
        self._write()  # so that the spool tells of the sampler, even where it never finds anything
        self._thread.start()

    def check(self) -> None:
        """Raise what has gone wrong in the sampler's thread."""
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End, and write what is left."""
        self._ended.set()
        self._thread.join()
        self._write()

    def _watch(self) -> None:
        try:
            written = time.monotonic()
            while self._num_samples < MOST_SAMPLES and not self._ended.wait(INTERVAL_S):
                self._look()
                if self._samples and time.monotonic() - written > _WRITE_S:
                    self._write()
                    written = time.monotonic()
        except Exception as error:  # told in the watched thread, which this one has no business to disturb
            self._error = error

    def _look(self) -> None:
        recorder = self._recorder
        if not (recorder.on and recorder.idle):
            return
        frame = sys._current_frames().get(self._watched)
        place = None if frame is None else place_of(frame)
        if place is None or not recorder.idle:
            return
        if place not in self._numbers:
            self._numbers[place] = len(self._numbers)
            self._new.append(place)
        self._samples.append((time.perf_counter_ns(), self._numbers[place]))
        self._num_samples += 1

    def _write(self) -> None:
        places, samples = self._new, self._samples
        self._new, self._samples = [], []
        self._spool.notes([{"note": "frames", "places": places, "samples": samples}])


def place_of(frame: FrameType) -> Place | None:
    """The innermost line of the program's own code, and the outermost function of a library above it.

    Own is what lies neither in Python's library nor among the installed packages, and the main module in any case.
    """
    library: CodeType | None = None
    module = ""
    current: FrameType | None = frame
    while current is not None:
        code = current.f_code
        name = current.f_globals.get("__name__", "")
        if not code.co_filename.startswith((*_LIBRARIES, _CHARACT, "<frozen")) or name == "__main__":
            called = None if library is None else f"{module}.{library.co_qualname}"
            return f"{_short(code.co_filename)}:{current.f_lineno}", code.co_qualname, called
        if not code.co_filename.startswith(_CHARACT):
            library, module = code, name
        current = current.f_back
    return None


def _short(path: str) -> str:
    """A path as it is written from the main module's directory, where it lies below."""
    root = os.path.join(sys.path[0], "") if sys.path else ""
    return path.removeprefix(root) if root else path


class Samples:
    """What a spool tells of a sampler."""

    def __init__(self) -> None:
        self.any = False
        """Whether there was a sampler."""
        self._places: list[Place] = []
        self._samples: list[tuple[int, int]] = []

    def add(self, note: dict[str, Any]) -> None:
        """Take in a note."""
        self.any = True
        self._places += [(place, function, library) for place, function, library in note["places"]]
        self._samples += [(time_ns, number) for time_ns, number in note["samples"]]

    def in_other(self, iterations: Sequence[Iteration]) -> dict[str, Any]:
        """Facts of the pass `frames` over a case: the places that were seen most often while its time was `other`."""
        counts = Counter(number for time_ns, number in self._samples
                         if number < len(self._places) and _is_other(time_ns, iterations))
        frames = [
            dict(zip(("place", "function", "library"), self._places[number], strict=True)) | {"num_samples": count}
            for number, count in counts.most_common(NUM_KEPT)
        ]
        return {"status": "ok", "reason": None, "interval_s": INTERVAL_S, "num_samples": counts.total(),
                "frames": frames}


def _is_other(time_ns: int, iterations: Sequence[Iteration]) -> bool:
    """Whether a moment lies in an iteration, but in none of its stretches."""
    place = bisect_right(iterations, time_ns, key=lambda one: one.start_ns) - 1
    if place < 0 or time_ns >= iterations[place].end_ns:
        return False
    return not any(one.start_ns <= time_ns < one.end_ns for one in iterations[place].stretches)
