"""Permission of this process to read the hardware's performance counters through NVIDIA's driver."""

import re
from pathlib import Path

from charact.measure.counters._support.protocol import Unavailable

ADMIN_ONLY = Unavailable(
    "the driver lets only administrators read performance counters",
    "have an administrator set `options nvidia NVreg_RestrictProfilingToAdminUsers=0` in /etc/modprobe.d and reboot, "
    "or start the container with `docker run --cap-add=SYS_ADMIN`")
BUSY = Unavailable("another profiler holds the device's performance counters",
                   "end it; for DCGM: `dcgmi profile --pause`, and --resume afterwards")
UNSUPPORTED = Unavailable("NVIDIA's profiler does not know this GPU's architecture",
                          "use a version of it that lists the GPU; see its release notes")

_PARAMETERS = Path("/proc/driver/nvidia/params")
_STATUS = Path("/proc/self/status")
_CAPABILITIES = 1 << 21 | 1 << 38  # CAP_SYS_ADMIN and CAP_PERFMON, linux/capability.h


def counters_unavailable() -> Unavailable | None:
    """Return why performance counters cannot be read, or None.

    The driver's parameter predicts it; without the parameter's file, the first counting shows it.
    """
    import torch  # here, since a child must load CUPTI first

    if torch.version.cuda is None:
        return Unavailable(f"counts on NVIDIA's GPUs, and torch {torch.__version__} is built without CUDA",
                           "on an NVIDIA GPU, install a CUDA build")
    if not torch.cuda.is_available():
        return Unavailable("counts on NVIDIA's GPUs, and torch finds none", "see `charact doctor` for why")
    return ADMIN_ONLY if admin_only() and not privileged() else None


def admin_only(parameters: Path = _PARAMETERS) -> bool:
    """Return whether the driver reserves counters for administrators; False if unknown."""
    if not parameters.exists():
        return False
    text = parameters.read_text(encoding="ascii", errors="replace")
    return re.search(r"^RmProfilingAdminOnly:\s*1\s*$", text, re.MULTILINE) is not None


def privileged(status: Path = _STATUS) -> bool:
    """Return whether this process has a capability of an administrator; False if unknown."""
    if not status.exists():
        return False
    held = re.search(r"^CapEff:\s*([0-9a-f]+)$", status.read_text(encoding="ascii", errors="replace"), re.MULTILINE)
    return held is not None and bool(int(held[1], 16) & _CAPABILITIES)
