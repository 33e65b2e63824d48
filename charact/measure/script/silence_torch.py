"""Keeping PyTorch from printing lines about our profiling on the program's standard error."""

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import torch

_ERROR = 2
"""Level of PyTorch's messages below which are its warnings."""


@contextlib.contextmanager
def quiet_profiler() -> Iterator[None]:
    """The profiler reads when it first starts whether it is to print lines of its own."""
    name = "KINETO_LOG_LEVEL"
    before = os.environ.get(name)
    os.environ.setdefault(name, "99")
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]


@contextlib.contextmanager
def quiet_allocator() -> Iterator[None]:
    """Keep PyTorch from printing that a block is given back which it did not see handed out: there are many.

    The level of its own messages can be set from Python only by a variable that is read when it is imported.
    """
    try:
        library = ctypes.CDLL(str(next((Path(torch.__file__).parent / "lib").glob("libc10.*"))))
        level = ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level")
    except (StopIteration, OSError, ValueError):  # a build that keeps its messages elsewhere
        yield
        return
    before, level.value = level.value, max(level.value, _ERROR)
    try:
        yield
    finally:
        level.value = before
