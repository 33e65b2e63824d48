"""The stack of a thread, read by another thread.

`sys._current_frames` can deadlock in Python 3.11 (python/cpython issue #106883): it allocates while it holds the lock
of the interpreter's list of threads. A garbage collection that starts then needs this lock for thread-local objects.

Up to Python 3.11, a collection may also start while the object of a frame is created. It calls Python functions, which
let the other thread run on and leave that frame: the object then refers to freed memory, and the process crashes. So
no collection may start here, and the other thread may not run.
"""

import ctypes
import gc
import operator
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, chain, repeat, takewhile
from types import FrameType
from typing import Any

_MOST_FRAMES = 1000
"""Largest number of frames that are read of a stack, the innermost ones."""
_CALL: Callable[[Any], Any] = operator.call
_ENABLE = (int, gc.enable)
"""What to call where collections were off, which is nothing, and where they were on."""

_state = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyThreadState_Get", ctypes.pythonapi))
_frame_of = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p)(("PyThreadState_GetFrame", ctypes.pythonapi))


class StackReader:
    """Reads the stack of the thread that creates it, while that thread lives."""

    def __init__(self) -> None:
        self._frame = partial(_frame_of, _state())

    def read(self, after: Sequence[Callable[[], Any]] = (), most: int = _MOST_FRAMES
             ) -> tuple[list[FrameType], list[Any]]:
        """Return the frames that the thread runs, the innermost first, and the results of functions called before.

        If `after` are written in C, the thread does not run on between the last one and the reading.
        """
        frames: list[FrameType] = []
        outer = accumulate(chain(map(_CALL, (self._frame,)), repeat("f_back", most - 1)), getattr)
        results = without_collection(partial(frames.extend, takewhile(bool, outer)), after)
        return frames, results[:-1]


def without_collection(call: Callable[[], Any], after: Sequence[Callable[[], Any]] = ()) -> list[Any]:
    """Return the results of functions; during the last one, no collection starts and no other thread runs.

    `call` is the last one, and must be written in C and keep the GIL. `map` calls all from C: only between two
    instructions of Python can another thread run.
    """
    was_enabled: list[bool] = []
    note = partial(was_enabled.extend, map(_CALL, (gc.isenabled,)))
    restore: partial[Any] = partial(list, map(_CALL, map(_ENABLE.__getitem__, was_enabled)))
    try:
        results = list(map(_CALL, (*after, note, gc.disable, call, restore)))
    except BaseException:
        if was_enabled == [True]:
            gc.enable()
        raise
    return [*results[:len(after)], results[-2]]
