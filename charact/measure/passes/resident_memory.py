"""Resident memory of this process: current and peak."""

import contextlib
import re
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


def resident_bytes() -> int:
    """Return the resident set size of this process in bytes."""
    import psutil  # here, so that profiled programs, which only need the peak, do not import it

    return int(psutil.Process().memory_info().rss)


def resident_peak_bytes() -> int:
    """Return the peak resident set size in bytes, since the process began or `reset_resident_peak` was called."""
    if sys.platform == "linux":  # not ru_maxrss: a process inherits it from its parent
        match = re.search(r"^VmHWM:\s+(\d+) kB$", _STATUS.read_text(encoding="ascii", errors="replace"), re.MULTILINE)
        assert match is not None, f"{_STATUS} has no VmHWM"
        return int(match[1]) * 1024
    try:
        import resource  # Unix only
    except ImportError:
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def reset_resident_peak() -> bool:
    """Reset the peak; return whether the system supports it, as Linux mostly does."""
    with contextlib.suppress(OSError):
        _RESET.write_text(_RESET_PEAK, encoding="ascii")
        return True
    return False
