"""What bricks and whole models are timed under alike, so that the one can be held against the other."""

import contextlib
import ctypes
import gc
import os
from collections.abc import Iterator

import torch

from charact.core.errors import UserError
from charact.execution.precision import float32_products

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4
_NEVER = 2**31 - 1
_MOST_KERNELS = 1_000_000
_MOST_THREADS = 4096
_USUAL_MAPPED_BLOCKS = 65_536
_LARGEST_THRESHOLD = 32 * 2**20
"""Where glibc's own threshold arrives once a block of that size was given back; it takes no larger one."""


@contextlib.contextmanager
def brick_settings(precision: str) -> Iterator[None]:
    """Time what runs inside as bricks are timed: with memory that is kept, and a collector that does not walk.

    The C library (glibc) keeps what is given back. Else large tensors are new pages each time, and filling them with
    zeros is timed: VGG-16 went from 728,920 page faults to 9. The collector is kept from walking what is there by now.
    oneDNN keeps all kernels that it has made, not the last 1024: a suite has more than any of its models, and making
    one takes some 400 microseconds. It reads that when it is first used: in a process that has used it before, such as
    one that has captured models, it keeps 1024. Threads and the treatment of denormal numbers stay as they are.

    Args:
        precision: as in `schema.PRECISIONS`; it tells whether float32 products may be rounded to TF32.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(_MOST_KERNELS))
    _keep_memory()
    gc.collect()
    gc.freeze()
    try:
        with float32_products(precision):
            yield
    finally:
        gc.unfreeze()
        _restore_allocator()


def set_recorded_threads(number: object) -> None:
    """Set PyTorch's number of threads to that of a record, which may come from anybody.

    Raises:
        UserError: no machine has so many: the process would be ended when they are started.
    """
    if type(number) is not int or not 1 <= number <= _MOST_THREADS:
        raise UserError(f"the run was made with {ascii(number)[:40]} threads, which no machine has: run the "
                        "suite again")
    torch.set_num_threads(number)


def _keep_memory() -> None:
    """Take no block from the system by itself, and give none back."""
    _set({_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: _NEVER})


def _restore_allocator() -> None:
    """As glibc does after it was given back a large block: the thresholds that it began with cannot be asked for."""
    _set({_M_MMAP_MAX: _USUAL_MAPPED_BLOCKS, _M_MMAP_THRESHOLD: _LARGEST_THRESHOLD,
          _M_TRIM_THRESHOLD: 2 * _LARGEST_THRESHOLD})
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


def _set(options: dict[int, int]) -> None:
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        for option, value in options.items():
            library.mallopt(option, value)
