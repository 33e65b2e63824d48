"""Memory limits on a device: allocations beyond them fail as on a smaller device."""

import contextlib
import ctypes
import gc
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import nn

from charact.core.errors import UserError
from charact.execution.out_of_memory import data_growth_limit, free_host_bytes, process_data_bytes

_GIVE_BACK_FROM_BYTES = 65_536
_ALLOWANCE_BYTES = 2 * 2**20
"""Allowance on top of a CPU limit, for measured allocations of Python and the profiler while a case runs."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
"""Options of glibc's allocator."""
_NEVER = 2**31 - 1
_USUAL_MAPPED_BLOCKS = 65_536
_LARGEST_THRESHOLD = 32 * 2**20
"""glibc's maximum dynamic mmap threshold (bytes)."""


@dataclass(frozen=True)
class Limit:
    """Memory that a case may use on a device."""

    device: torch.device
    limit_bytes: int
    """Total limit, including a CUDA context and other programs."""
    before_bytes: int
    """Memory in use before the case: on a CPU the process's data, on CUDA the device's memory outside the allocator."""

    def free_bytes(self) -> int:
        """Return the remaining bytes."""
        if self.device.type == "cuda":
            return max(0, self.limit_bytes - self.before_bytes - torch.cuda.memory_reserved(self.device))
        return max(0, self.limit_bytes - (process_data_bytes() - self.before_bytes))


@contextlib.contextmanager
def memory_limit(device: torch.device, limit_bytes: int | None) -> Iterator[Limit]:
    """Limit the memory of a device within the block; by default to the free memory.

    On a CPU the limit applies to the growth of this process's data. On CUDA, PyTorch's allocator may use the limit
    minus the memory in use outside it.

    *Error*: on a CPU, memory of libraries and Python counts too, and allocations in free parts of the heap do not: some
    MB more or less. See `give_back_to_system`.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        in_use = total - free - torch.cuda.memory_reserved(device)
        allowed = total if limit_bytes is None else min(limit_bytes, total)
        if allowed <= in_use:
            raise UserError(f"--device-memory: {in_use} bytes of {device} are in use before anything runs: set more")
        with _cuda_fraction(device, (allowed - in_use) / total):
            yield Limit(device, allowed, in_use)
        return
    if limit_bytes is not None and sys.platform != "linux":
        raise UserError("only Linux limits the memory of a process on a CPU: estimate it with --predict")
    free = free_host_bytes()
    allowed = free if limit_bytes is None else min(limit_bytes, free)
    allowance = 0 if limit_bytes is None else _ALLOWANCE_BYTES
    with data_growth_limit(allowed + allowance):
        yield Limit(device, allowed, process_data_bytes() + allowance)


@contextlib.contextmanager
def growth_limit(device: torch.device, num_bytes: int) -> Iterator[None]:
    """Limit the additional memory of a device that the block may use."""
    if device.type == "cuda":
        _, total = torch.cuda.mem_get_info(device)
        allowed = (torch.cuda.memory_reserved(device) + num_bytes) / total
        with _cuda_fraction(device, min(torch.cuda.get_per_process_memory_fraction(device), allowed)):
            yield
    else:
        with data_growth_limit(num_bytes):
            yield


@contextlib.contextmanager
def _cuda_fraction(device: torch.device, frac: float) -> Iterator[None]:
    before = torch.cuda.get_per_process_memory_fraction(device)
    torch.cuda.set_per_process_memory_fraction(frac, device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(before, device)


@cache
def warm_up_process() -> None:
    """Run PyTorch's one-time initialization once: imports, threads, and the profiler's start."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 30 * 30, 10))
    optimizer = torch.optim.Adam(model.parameters())
    with torch.autograd.profiler.profile(profile_memory=True):
        model(torch.ones(64, 3, 32, 32)).sum().backward()
        optimizer.step()


@cache
def give_back_to_system() -> None:
    """Make the C library return freed blocks to the system (glibc); otherwise cached blocks count as in use.

    This slows down iterations: only for processes in which no time is measured.
    """
    _set_allocator({_MMAP_THRESHOLD: _GIVE_BACK_FROM_BYTES, _TRIM_THRESHOLD: _GIVE_BACK_FROM_BYTES})


def keep_freed_memory() -> None:
    """Make the C library keep freed blocks: no mmap for single blocks, and no memory returned to the system (glibc)."""
    _set_allocator({_MMAP_MAX: 0, _TRIM_THRESHOLD: _NEVER})


def restore_allocator() -> None:
    """Set glibc's thresholds to their dynamic maximum, since the previous ones cannot be queried; trim the heap."""
    _set_allocator({_MMAP_MAX: _USUAL_MAPPED_BLOCKS, _MMAP_THRESHOLD: _LARGEST_THRESHOLD,
                    _TRIM_THRESHOLD: 2 * _LARGEST_THRESHOLD})
    trim_heap()


def _set_allocator(options: Mapping[int, int]) -> None:
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        for option, value in options.items():
            library.mallopt(option, value)


def trim_heap() -> None:
    """Return the free memory of the C library's heap to the system (glibc)."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


def release_memory(device: torch.device) -> None:
    """Free garbage cycles and the allocators' caches of earlier cases."""
    gc.collect()
    trim_heap()
    if device.type == "cuda":
        # After a fault in a kernel every call on the device fails: the next case reports it.
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()
