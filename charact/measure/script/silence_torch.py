"""Context managers that keep PyTorch from printing messages about charact's profiling on standard error."""

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import torch

_ERROR = 2
"""Log level that hides PyTorch's warnings."""


@contextlib.contextmanager
def quiet_profiler() -> Iterator[None]:
    """Silence the profiler: set its log level, which it reads at its first start, unless the user has set it."""
    name = "KINETO_LOG_LEVEL"
    before = os.environ.get(name)
    os.environ.setdefault(name, "99")
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)


@contextlib.contextmanager
def quiet_allocator() -> Iterator[None]:
    """Silence the allocator's warnings about freed blocks whose allocation was not recorded.

    The log level is set through ctypes, because PyTorch reads its environment variable only at import.
    """
    try:
        library = ctypes.CDLL(str(next((Path(torch.__file__).parent / "lib").glob("libc10.*"))))
        level = ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level")
    except (StopIteration, OSError, ValueError):  # a build without this symbol
        yield
        return
    before, level.value = level.value, max(level.value, _ERROR)
    try:
        yield
    finally:
        level.value = before
