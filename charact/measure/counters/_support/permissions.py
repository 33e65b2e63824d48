"""Whether NVIDIA's driver lets this process read the hardware's performance counters."""

import re
from pathlib import Path

from charact.measure.counters._support.protocol import Refusal

ADMIN_ONLY = Refusal(
    "the driver lets administrators only read performance counters",
    "have an administrator set `options nvidia NVreg_RestrictProfilingToAdminUsers=0` in /etc/modprobe.d and reboot, "
    "or start the container with `docker run --cap-add=SYS_ADMIN`")
BUSY = Refusal("another profiler holds the device's performance counters",
               "end it; for DCGM: `dcgmi profile --pause`, and --resume afterwards")
UNSUPPORTED = Refusal("NVIDIA's profiler does not know this GPU's architecture",
                      "use a version of it that lists the GPU; see its release notes")

_PARAMETERS = Path("/proc/driver/nvidia/params")
_STATUS = Path("/proc/self/status")
_CAPABILITIES = 1 << 21 | 1 << 38  # CAP_SYS_ADMIN and CAP_PERFMON, linux/capability.h


def counters_refusal() -> Refusal | None:
    """Why performance counters cannot be read here; None where they may be.

    The driver's parameter predicts it; a device that no file tells about is asked when counting begins.
    """
    import torch  # not before a child has loaded CUPTI

    if torch.version.cuda is None:
        return Refusal(f"counts on NVIDIA's GPUs, and torch {torch.__version__} is built without CUDA",
                       "on an NVIDIA GPU, install a CUDA build")
    if not torch.cuda.is_available():
        return Refusal("counts on NVIDIA's GPUs, and torch finds none", "see `charact doctor` for why")
    return ADMIN_ONLY if admin_only() and not privileged() else None


def admin_only(parameters: Path = _PARAMETERS) -> bool:
    """Whether the driver is set to keep counters for administrators; false where it does not tell."""
    if not parameters.exists():
        return False
    text = parameters.read_text(encoding="ascii", errors="replace")
    return re.search(r"^RmProfilingAdminOnly:\s*1\s*$", text, re.MULTILINE) is not None


def privileged(status: Path = _STATUS) -> bool:
    """Whether this process has a capability that counts as an administrator's; false where nothing tells."""
    if not status.exists():
        return False
    held = re.search(r"^CapEff:\s*([0-9a-f]+)$", status.read_text(encoding="ascii", errors="replace"), re.MULTILINE)
    return held is not None and bool(int(held[1], 16) & _CAPABILITIES)
