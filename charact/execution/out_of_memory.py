"""Detection of out-of-memory errors, and a guard that turns them into exceptions that a sweep survives."""

import contextlib
import re
import sys
from collections.abc import Iterator

import psutil
import torch

from charact.machine.cgroups import memory_limit_bytes

RESERVED_FRAC = 0.05
"""Share of the machine's memory reserved for other processes, which may grow."""

_UNITS = {"B": 1, "bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_REQUEST = re.compile(r"(?:[Tt]ried to|Unable to) allocate (?P<number>[\d.]+) ?(?P<unit>[KMGT]iB|bytes|B)")
_SIGNS = (
    "can't allocate memory", "Cannot allocate memory", "std::bad_alloc", "bad allocation", "Unable to allocate",
    "Caught MemoryError", "is killed by signal: Killed",  # in a worker of the data loader
    "CUDA error: out of memory", "STATUS_ALLOC_FAILED",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that host or device memory ran out."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, (RuntimeError, OSError)) and any(sign in str(error) for sign in _SIGNS)


def requested_bytes(error: BaseException) -> int | None:
    """Return the size of the failed allocation in bytes; None if the message has no size."""
    match = _REQUEST.search(str(error))
    return None if match is None else round(float(match["number"]) * _UNITS[match["unit"]])


def reason_line(error: BaseException) -> str:
    """Return the line of the error's message with the size, else its first line."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return next((line.strip() for line in lines if _REQUEST.search(line)), lines[0])


@contextlib.contextmanager
def host_memory_guard(device: torch.device | None = None) -> Iterator[None]:
    """Limit the growth of this process's data to the memory that is free now.

    Linux overcommits memory and later kills the process that uses it, which would lose the record. With a limit the
    allocation raises an error instead. Child processes inherit it. CUDA is started before the limit is set, since it
    reserves more address space than it uses.
    """
    if device is not None and device.type == "cuda":
        torch.zeros(1, device=device)
    with data_growth_limit(free_host_bytes()):
        yield


def free_host_bytes() -> int:
    """Return the memory that this process may still use, of the machine and of its control group (bytes)."""
    machine = psutil.virtual_memory()
    free = max(0, machine.available - round(RESERVED_FRAC * machine.total))
    if (allowed := memory_limit_bytes()) is not None:
        free = min(free, max(0, allowed - psutil.Process().memory_info().rss))
    return free


@contextlib.contextmanager
def data_growth_limit(num_bytes: int) -> Iterator[None]:
    """Limit the growth of this process's data; other systems than Linux have no such limit."""
    if sys.platform != "linux":
        yield
        return
    import resource  # Unix only

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    # Linux counts private writable memory, touched or not.
    limits = [process_data_bytes() + num_bytes, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def process_data_bytes() -> int:
    """Return this process's private writable memory, as Linux counts it for the limit; elsewhere its resident set."""
    process = psutil.Process().memory_info()
    return int(process.data if sys.platform == "linux" else process.rss)
