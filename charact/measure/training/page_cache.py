"""The operating system's cache of files: emptied of one file, so that its next reading comes from the disk."""

import ctypes
import mmap
import os
import sys
from pathlib import Path


def drop_cached(path: Path) -> str | None:
    """Drop a file's pages from memory; returns why they are still there, None where they are gone.

    *Error*: what the disk and a hypervisor below keep in caches of their own is beyond reach.
    """
    if sys.platform != "linux":
        return f"{sys.platform} has no posix_fadvise that drops cached pages"
    with path.open("rb") as file:
        os.fsync(file.fileno())  # pages that wait to be written are not dropped
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    frac = cached_frac(path)
    return f"{frac:.0%} of the file stayed in memory (a file system in memory, or another process uses it)" \
        if frac else None


def cached_frac(path: Path) -> float:
    """Share of a file's pages that are in memory, by Linux's `mincore`.

    Raises:
        OSError: the system does not tell.
    """
    num_bytes = path.stat().st_size
    if not num_bytes:
        return 0.0
    num_pages = -(-num_bytes // mmap.PAGESIZE)
    states = (ctypes.c_ubyte * num_pages)()
    with path.open("rb") as file, mmap.mmap(file.fileno(), num_bytes, access=mmap.ACCESS_COPY) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(num_bytes), states)
        del first  # else the map could not be closed
    if failed:
        raise OSError(ctypes.get_errno(), f"mincore: {os.strerror(ctypes.get_errno())}")
    return sum(state & 1 for state in states) / num_pages
