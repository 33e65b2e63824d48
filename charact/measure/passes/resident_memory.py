"""Resident memory of this process: now, and at most."""

import contextlib
import re
import resource
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


def resident_bytes() -> int:
    """Resident set of this process now."""
    import psutil  # here: the peak is told of watched programs too, which are to import nothing more for it

    return int(psutil.Process().memory_info().rss)


def resident_peak_bytes() -> int:
    """Largest resident set of this process since it began or `reset_resident_peak` was called."""
    if sys.platform == "linux":  # not ru_maxrss: a process inherits that from the one that started it
        found = re.search(r"^VmHWM:\s+(\d+) kB$", _STATUS.read_text(encoding="ascii", errors="replace"), re.MULTILINE)
        assert found is not None, f"{_STATUS} has no VmHWM"
        return int(found[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def reset_resident_peak() -> bool:
    """Begin the peak anew; returns whether the system does that, as Linux mostly does."""
    with contextlib.suppress(OSError):
        _RESET.write_text(_RESET_PEAK, encoding="ascii")
        return True
    return False
