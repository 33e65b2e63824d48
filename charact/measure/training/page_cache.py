"""Page cache of the operating system: evicts a file, so that its next read comes from the disk."""

import ctypes
import mmap
import os
import sys
from pathlib import Path


def drop_cached(path: Path) -> str | None:
    """Evict a file's pages from the page cache; return why pages remain, or None.

    *Error*: caches of the disk and of a hypervisor cannot be evicted.
    """
    if sys.platform != "linux":
        return f"{sys.platform} has no posix_fadvise that drops cached pages"
    with path.open("rb") as file:
        os.fsync(file.fileno())  # dirty pages are not evicted
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    frac = cached_frac(path)
    return f"{frac:.0%} of the file stayed in memory (a file system in memory, or another process uses it)" \
        if frac else None


def cached_frac(path: Path) -> float:
    """Return the share of a file's pages that are in the page cache, by Linux's `mincore`.

    Raises:
        OSError: the system call failed.
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
        del first  # otherwise the map could not be closed
    if failed:
        raise OSError(ctypes.get_errno(), f"mincore: {os.strerror(ctypes.get_errno())}")
    return sum(state & 1 for state in states) / num_pages
