"""Time the parts of a program from within: prints the loop's time at exit and, with TRUTH=1, the time of each part."""

import atexit
import os
import statistics
import time
from pathlib import Path

_parts: dict[str, list[float]] = {}
_pid = os.getpid()
_last = time.perf_counter()


def mark(part):
    """Add the time since the last mark to a part; "imports" is no part of the loop."""
    global _last
    now = time.perf_counter()
    _parts.setdefault(part, []).append(now - _last)
    _last = now


def resident_mib():
    """Return the resident memory of the process in MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


@atexit.register
def _print_times():
    if os.getpid() != _pid:
        return
    loop_s = sum(sum(times) for part, times in _parts.items() if part != "imports")
    if os.environ.get("TRUTH"):
        for part, times in _parts.items():
            print(f"TRUTH {part}: n {len(times)}, median {statistics.median(times) * 1e3:.2f} ms, "
                  f"max {max(times) * 1e3:.1f} ms, sum {sum(times):.2f} s = {sum(times) / loop_s:.1%} of the loop")
        print(f"TRUTH resident memory {resident_mib():.0f} MiB")
    print(f"loop: {loop_s:.3f} s")
