"""Timing a whole model like its bricks: with the same settings, and on one batch prepared in advance."""

import contextlib
import gc
import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from charact.bricks.capture.sources import Source
from charact.core.errors import UserError
from charact.execution.loop import Loop
from charact.execution.memory_limit import M_MMAP_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, set_allocator, trim_heap
from charact.execution.out_of_memory import host_memory_guard
from charact.execution.precision import float32_products
from charact.measure.passes.timing import StopRule, Timing, timing_pass


def time_end_to_end(source: Source, rule: StopRule, device: torch.device | None = None) -> Timing:
    """Time iterations of a model: forward, and in training loss, backward and update.

    Bricks do not include data loading, so all iterations use one batch prepared in advance, and fetching it counts as
    `other`. The fact `on_core_frac` is the share of the time in which the calling thread was on a core; on a CPU it is
    near 1 unless other programs interfere.

    Args:
        source: the model with its sizes, mode and precision.
        rule: stop rule.
        device: by default the device of the source's case.
    """
    case = source.case if device is None else replace(source.case, device=device)
    with host_memory_guard(case.device), brick_settings(case.precision):
        loop = Loop(case)
        try:
            batch = loop.next_batch()
        finally:
            loop.close()  # workers of a loader would compete with the model
        loop.feed(itertools.repeat(batch))
        begun, ran = time.perf_counter(), time.thread_time()
        timing = timing_pass(loop, rule, lambda num_iterations, median_s: None)
        on_core_frac = (time.thread_time() - ran) / (time.perf_counter() - begun)
    return replace(timing, rows=_without_data(timing.rows), facts=timing.facts | {"on_core_frac": on_core_frac})


def _without_data(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of the table `iterations` with the data phase merged into `other`."""
    data = {row["iteration"]: row for row in rows if row["phase"] == "data"}
    kept = []
    for row in rows:
        if row["phase"] == "other":
            fetched = data[row["iteration"]]
            row = row | {column: None if row[column] is None else row[column] + fetched[column]
                         for column in ("host_s", "device_s")}
        if row["phase"] != "data":
            kept.append(row)
    return kept


_NEVER = 2**31 - 1
_MOST_KERNELS = 1_000_000
_MOST_THREADS = 4096
_USUAL_MAPPED_BLOCKS = 65_536
_LARGEST_THRESHOLD = 32 * 2**20
"""glibc's maximum dynamic mmap threshold (bytes)."""


@contextlib.contextmanager
def brick_settings(precision: str) -> Iterator[None]:
    """Apply the settings of brick timing: freed memory stays in the process, and the garbage collector is frozen.

    The C library (glibc) does not return freed memory. Otherwise each large tensor would get new pages, and the time
    to zero them would be measured (VGG-16: 728,920 page faults, and 9 with this setting). Objects that exist
    now are exempt from garbage collection.

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
    """Set glibc's thresholds to their dynamic maximum, since the previous ones cannot be queried; trim the heap."""
    set_allocator({M_MMAP_MAX: _USUAL_MAPPED_BLOCKS, M_MMAP_THRESHOLD: _LARGEST_THRESHOLD,
                   M_TRIM_THRESHOLD: 2 * _LARGEST_THRESHOLD})
    trim_heap()
