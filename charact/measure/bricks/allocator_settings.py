"""Process settings shared by the timing of bricks and of whole models: allocator, garbage collector, oneDNN, TF32."""

import contextlib
import gc
import os
from collections.abc import Iterator

import torch

from charact.core.errors import UserError
from charact.execution.memory_limit import M_MMAP_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, set_allocator, trim_heap
from charact.execution.precision import float32_products

_NEVER = 2**31 - 1
_MOST_KERNELS = 1_000_000
_MOST_THREADS = 4096
_USUAL_MAPPED_BLOCKS = 65_536
_LARGEST_THRESHOLD = 32 * 2**20
"""glibc's maximum dynamic mmap threshold (bytes)."""


@contextlib.contextmanager
def brick_settings(precision: str) -> Iterator[None]:
    """Apply the settings of brick timing: freed memory stays in the process, and the garbage collector is frozen.

    The C library (glibc) does not return freed memory. Otherwise large tensors would be new pages each time, whose
    zeroing would be timed: VGG-16 went from 728,920 page faults to 9. Objects that exist now are exempt from garbage
    collection.

    oneDNN caches all its kernels instead of the last 1024: a suite has more than a model, and creating one takes about
    400 microseconds. oneDNN reads this setting on first use, so it has no effect in a process that has already used
    oneDNN, for example to capture models. The number of threads and the treatment of denormals are not changed.

    Args:
        precision: as in `schema.PRECISIONS`; it determines whether float32 products may be rounded to TF32.
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
    """Set PyTorch's number of threads to that of a record, which may be untrusted.

    Raises:
        UserError: the number is implausible: starting the threads would end the process.
    """
    if type(number) is not int or not 1 <= number <= _MOST_THREADS:
        raise UserError(f"the run was made with {ascii(number)[:40]} threads, which no machine has: run the "
                        "suite again")
    torch.set_num_threads(number)


def _keep_memory() -> None:
    """Disable mmap for single blocks, and never return memory to the system."""
    set_allocator({M_MMAP_MAX: 0, M_TRIM_THRESHOLD: _NEVER})


def _restore_allocator() -> None:
    """Set glibc's largest dynamic thresholds, since the initial ones cannot be queried, and trim the heap."""
    set_allocator({M_MMAP_MAX: _USUAL_MAPPED_BLOCKS, M_MMAP_THRESHOLD: _LARGEST_THRESHOLD,
                   M_TRIM_THRESHOLD: 2 * _LARGEST_THRESHOLD})
    trim_heap()
