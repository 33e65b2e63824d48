"""The frame that a thread runs, read by another thread.

`sys._current_frames` can deadlock in Python 3.11 (python/cpython issue #106883): it allocates while it holds the lock
of the interpreter's list of threads. A garbage collection that starts then needs this lock for thread-local objects.
"""

import ctypes
from collections.abc import Callable
from functools import partial
from types import FrameType

_state = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyThreadState_Get", ctypes.pythonapi))
_frame_of = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p)(("PyThreadState_GetFrame", ctypes.pythonapi))


def frame_reader() -> Callable[[], FrameType]:
    """Return a function that returns the frame which the calling thread runs at that time.

    Other threads may call the function, but only while the calling thread lives.
    """
    return partial(_frame_of, _state())
