"""Running out of memory: made an error that a sweep survives, and recognized with the size that was asked for."""

import contextlib
import re
import resource
import sys
from collections.abc import Iterator

import psutil
import torch

from charact.machine.cgroups import memory_limit_bytes

RESERVED_FRAC = 0.05
"""Share of the machine's memory that a case leaves to others, which may grow meanwhile."""

_UNITS = {"B": 1, "bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_REQUEST = re.compile(r"(?:[Tt]ried to|Unable to) allocate (?P<number>[\d.]+) ?(?P<unit>[KMGT]iB|bytes|B)")
_SIGNS = (
    "can't allocate memory", "Cannot allocate memory", "std::bad_alloc", "bad allocation", "Unable to allocate",
    "Caught MemoryError", "is killed by signal: Killed",  # in a worker of the data loader
    "CUDA error: out of memory", "STATUS_ALLOC_FAILED",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that host or device memory ran out."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, (RuntimeError, OSError)) and any(sign in str(error) for sign in _SIGNS)


def requested_bytes(error: BaseException) -> int | None:
    """Size of the allocation that failed, in bytes; None where the message does not tell."""
    match = _REQUEST.search(str(error))
    return None if match is None else round(float(match["number"]) * _UNITS[match["unit"]])


def reason_line(error: BaseException) -> str:
    """The line of the error's message that tells the size, else its first."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return next((line.strip() for line in lines if _REQUEST.search(line)), lines[0])


@contextlib.contextmanager
def host_memory_guard() -> Iterator[None]:
    """Let this process's data grow no further than the memory that is free now.

    Linux hands out more memory than it has, and later kills the process that uses it: nothing of the record would be
    left. With a limit the allocation fails instead, as an error. Children inherit it.
    """
    if sys.platform != "linux":  # elsewhere nothing tells what counts against the limit
        yield
        return
    with data_growth_limit(free_host_bytes()):
        yield


def free_host_bytes() -> int:
    """Memory that this process may still take: what is available of the machine's and of its control group's."""
    machine = psutil.virtual_memory()
    free = max(0, machine.available - round(RESERVED_FRAC * machine.total))
    if (allowed := memory_limit_bytes()) is not None:
        free = min(free, max(0, allowed - psutil.Process().memory_info().rss))
    return free


@contextlib.contextmanager
def data_growth_limit(num_bytes: int) -> Iterator[None]:
    """Let this process's data grow by no more than so much (Linux)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    # What counts by now is private writable memory, whether it was touched or not.
    limits = [process_data_bytes() + num_bytes, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def process_data_bytes() -> int:
    """This process's private writable memory, as Linux counts it against its limit; elsewhere its resident set."""
    process = psutil.Process().memory_info()
    return int(process.data if sys.platform == "linux" else process.rss)

