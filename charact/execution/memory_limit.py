"""A limit of memory on a device that has more, set for real: what does not fit fails as it would on a smaller one."""

import contextlib
import ctypes
import gc
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import nn

from charact.core.errors import UserError
from charact.execution.out_of_memory import data_growth_limit, free_host_bytes, process_data_bytes

_GIVE_BACK_FROM_BYTES = 65_536
_BESIDE_BYTES = 2 * 2**20
"""What Python and the profiler were seen to take while a case runs on a CPU: it is granted on top of a limit."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


@dataclass(frozen=True)
class Limit:
    """What a case may take of a device's memory."""

    device: torch.device
    limit_bytes: int
    """All that it may take, a CUDA context and other programs included."""
    before_bytes: int
    """What was taken before it began: on a CPU of the process's data, on CUDA of the device beside the allocator."""

    def free_bytes(self) -> int:
        """What is left of it now."""
        if self.device.type == "cuda":
            return max(0, self.limit_bytes - self.before_bytes - torch.cuda.memory_reserved(self.device))
        return max(0, self.limit_bytes - (process_data_bytes() - self.before_bytes))


@contextlib.contextmanager
def memory_limit(device: torch.device, limit_bytes: int | None) -> Iterator[Limit]:
    """Let what runs inside take no more of a device's memory; by default no more than is free.

    On a CPU it is this process's data that may grow by so much. Of CUDA's devices PyTorch's allocator may keep the
    limit less what is taken beside it.

    *Error*: on a CPU what libraries and Python take counts too, and what fits into holes of the heap does not: some MB
    up or down. See `give_back_to_system`.

    Raises:
        UserError: a limit on a CPU, and the system is not Linux; or one that a CUDA context exceeds.
    """
    if device.type == "cuda":
        with _cuda_limit(device, limit_bytes) as limit:
            yield limit
    elif sys.platform == "linux":
        free = free_host_bytes()
        allowed = free if limit_bytes is None else min(limit_bytes, free)
        beside = 0 if limit_bytes is None else _BESIDE_BYTES
        with data_growth_limit(allowed + beside):
            yield Limit(device, allowed, process_data_bytes() + beside)
    elif limit_bytes is None:  # nothing tells what counts
        yield Limit(device, free_host_bytes(), process_data_bytes())
    else:
        raise UserError("only Linux limits the memory of a process on a CPU: predict it with --predict")


@contextlib.contextmanager
def growth_limit(device: torch.device, num_bytes: int) -> Iterator[None]:
    """Let what runs inside take no more than so much in addition to what the process holds of a device's memory."""
    if device.type == "cuda":
        _, total = torch.cuda.mem_get_info(device)
        before = torch.cuda.get_per_process_memory_fraction(device)
        allowed = (torch.cuda.memory_reserved(device) + num_bytes) / total
        torch.cuda.set_per_process_memory_fraction(min(before, allowed), device)
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(before, device)
    elif sys.platform == "linux":
        with data_growth_limit(num_bytes):
            yield
    else:  # nothing tells what counts
        yield


@contextlib.contextmanager
def _cuda_limit(device: torch.device, limit_bytes: int | None) -> Iterator[Limit]:
    free, total = torch.cuda.mem_get_info(device)
    beside = total - free - torch.cuda.memory_reserved(device)
    allowed = total if limit_bytes is None else min(limit_bytes, total)
    if allowed <= beside:
        raise UserError(f"--device-memory: {beside} bytes of {device} are taken before anything runs: give it more")
    before = torch.cuda.get_per_process_memory_fraction(device)
    torch.cuda.set_per_process_memory_fraction((allowed - beside) / total, device)
    try:
        yield Limit(device, allowed, beside)
    finally:
        torch.cuda.set_per_process_memory_fraction(before, device)


@cache
def warm_up_process() -> None:
    """Do once what the first case would do for all: PyTorch's imports, threads, and the profiler's start."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 30 * 30, 10))
    optimizer = torch.optim.Adam(model.parameters())
    with torch.autograd.profiler.profile(profile_memory=True):
        model(torch.ones(64, 3, 32, 32)).sum().backward()
        optimizer.step()


@cache
def give_back_to_system() -> None:
    """Have the C library give freed blocks back to the system (glibc); else it keeps many, which then count.

    It makes iterations slower: for processes in which no time is measured.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_M_MMAP_THRESHOLD, _GIVE_BACK_FROM_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _GIVE_BACK_FROM_BYTES)


def release_memory(device: torch.device) -> None:
    """Give back what earlier cases have left: cycles, and what the allocators keep."""
    gc.collect()
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)
    if device.type == "cuda":
        # After a fault in a kernel the device refuses everything: the next case will say so.
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()
