"""Target devices of memory estimates: of this machine, from a table, or given by their memory size."""

import os
import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Literal

from charact.core.errors import UserError

if TYPE_CHECKING:
    import torch

MIB, GIB = 2**20, 2**30
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "KIB": 2**10, "MIB": MIB, "GIB": GIB, "TIB": 2**40}
_MEMORY = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([a-z]*)\s*", re.IGNORECASE)

_LOADED_BYTES = 146 * MIB
"""Kernels of PyTorch, cuBLAS and cuDNN that CUDA loads in a small training: measured on an H200 with PyTorch 2.11."""
_MOST_LOADED_BYTES = 362 * MIB
"""Kernels of PyTorch if all are loaded at once: 666,632,192 less 287,047,680 bytes, in pytorch/pytorch #86509."""
_EAGER_BYTES = 1343 * MIB
"""Context without lazy loading, of a V100 with CUDA 11.2 (Hugging Face, "Model training anatomy").

More than 1000 MB before CUDA 11.7 according to pytorch/pytorch #107667. PyTorch 1.13 and later load lazily unless
`CUDA_MODULE_LOADING` is set (#86509).
"""
_BARE_CONTEXT_BYTES = {3: 300 * MIB, 6: 300 * MIB, 7: 300 * MIB, 8: 422 * MIB, 9: 522 * MIB, 10: 600 * MIB,
                       12: 600 * MIB}
"""A process's memory on a GPU before its first kernel, by major compute capability, with modules loaded lazily.

Source: process sizes in public reports: 418 MiB (A100), 426 MiB (RTX 6000 Ada, unslothai/unsloth-zoo #1053), 522 MiB
(H100); 274 MiB on an unnamed GPU of 2022 (pytorch/pytorch #86509), used for GPUs older than Ampere. Measured: 527 MiB
on an H200 with driver 580, and 621 MiB for a second process beside the first. The values of Blackwell are an estimate.
Reports for one architecture differ by 100 MiB and more with the driver: a process with CUDA 12.8 on an RTX 3090 had 256
MiB (invoke-ai/InvokeAI #9413), others "around 400 MB" (pytorch #109888).
"""
_NEAR_FRAC, _MOST_BYTES = 0.15, 2**50
ASSUMED_CAPABILITY = (8, 0)
"""Compute capability assumed for a GPU given by its memory size: Ampere's."""


@dataclass(frozen=True)
class Target:
    """Target device of a memory estimate."""

    name: str
    kind: Literal["cpu", "cuda"]
    memory_bytes: int | None
    """Memory available to a program, including its CUDA context; None if not requested."""
    context_bytes: int
    """Estimated memory of the CUDA context; 0 on a CPU."""
    source: str
    """Source of `memory_bytes`."""
    capability: tuple[int, int] | None = None
    """Compute capability, which determines the algorithms of CUDA's libraries; None on a CPU, assumed on ROCm."""
    rocm_architecture: str | None = None
    """AMD's name of the architecture, such as gfx942; None with CUDA."""

    @property
    def context_high_bytes(self) -> int:
        """Return the upper bound of the context; 0 on a CPU."""
        if self.kind == "cpu":
            return 0
        high = self.context_bytes - _LOADED_BYTES + _MOST_LOADED_BYTES
        return max(high, _EAGER_BYTES) if os.environ.get("CUDA_MODULE_LOADING") == "EAGER" else high


_MESSAGES = "lowest total capacity in PyTorch's out-of-memory messages of public reports"
_TABLE: dict[str, tuple[float, tuple[int, int], str]] = {
    "k80": (11.17, (3, 7), _MESSAGES),
    "p100": (15.90, (6, 0), _MESSAGES),
    "v100-16gb": (15.77, (7, 0), _MESSAGES),
    "v100-32gb": (31.73, (7, 0), _MESSAGES),
    "t4": (14.56, (7, 5), _MESSAGES),
    "a100-40gb": (39.25, (8, 0), _MESSAGES),
    "a100-80gb": (79.14, (8, 0), _MESSAGES),
    "rtx3090": (23.68, (8, 6), _MESSAGES),
    "rtx4090": (23.64, (8, 9), _MESSAGES),
    "rtx6000-ada": (50_865_307_648 / GIB, (8, 9), "get_device_properties, in unslothai/unsloth-zoo #1053"),
    "l4": (22.03, (8, 9), _MESSAGES),
    "l40s": (44.34, (8, 9), _MESSAGES),
    "h100-80gb": (79.10, (9, 0), f"{_MESSAGES}; 79.18 in a profiler's trace"),
    "h200": (139.72, (9, 0), _MESSAGES),
    "b200": (178.35, (10, 0), _MESSAGES),
    "rtx5090": (31.36, (12, 0), _MESSAGES),
}
"""Total memory (GiB), compute capability, and source of the total.

The totals are those reported by CUDA, 1 to 11 % below the datasheets: the driver reserves some, and error correction
takes 1/16 on devices without dedicated ECC memory (T4, L4, L40S). They vary by tenths of a GiB with the driver.
"""


def target_names() -> list[str]:
    """Return the names of the devices of the table."""
    return list(_TABLE)


def targets_of_about(memory_bytes: int, most: int = 3) -> list[str]:
    """Return the names of the devices of the table whose memory is nearest, at most 15 % off, the nearest first."""
    off = {name: abs(total_gib * GIB / memory_bytes - 1) for name, (total_gib, _, _) in _TABLE.items()}
    return sorted((name for name in off if off[name] <= _NEAR_FRAC), key=off.__getitem__)[:most]


def target_like(name: str) -> Target:
    """Return the device of a name from the table; case, spaces and underscores do not matter."""
    wanted = re.sub(r"[\s_]+", "-", name.strip().lower())
    if wanted not in _TABLE:
        # for example a100, which has two sizes, or "RTX 4090"
        near = [known for known in _TABLE if known.split("-")[0] == wanted.split("-")[0]]
        near += [known for known in _TABLE if known.replace("-", "") == wanted.replace("-", "")]
        near = list(dict.fromkeys(near)) or get_close_matches(wanted, _TABLE) or list(_TABLE)
        raise UserError(f"there is no device '{name}' in the table: try {', '.join(near)}, or give its memory, such as "
                        "16GiB")
    total_gib, capability, source = _TABLE[wanted]
    return Target(wanted, "cuda", int(total_gib * GIB), _context_bytes(capability), source, capability)


def target_of_memory(memory_bytes: int, kind: Literal["cpu", "cuda"]) -> Target:
    """Return a device of a given memory size; a GPU counts as Ampere."""
    name = f"a {'GPU' if kind == 'cuda' else 'CPU'} with {memory_bytes / GIB:.4g} GiB"
    if kind == "cpu":
        return Target(name, kind, memory_bytes, 0, "given")
    return Target(name, kind, memory_bytes, _context_bytes(ASSUMED_CAPABILITY), "given", ASSUMED_CAPABILITY)


def this_device(device: "torch.device") -> Target:
    """Return a device of this machine; for a CPU, with the memory available to the process."""
    if device.type == "cpu":
        import psutil

        from charact.machine.cgroups import memory_limit_bytes

        total, limit = psutil.virtual_memory().total, memory_limit_bytes()
        if limit is not None and limit < total:
            return Target("this machine", "cpu", limit, 0, "limit of the process's control group")
        return Target("this machine", "cpu", total, 0, "the machine's memory")
    import torch

    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:  # its major and minor number are not a compute capability
        return Target(properties.name, "cuda", properties.total_memory, _context_bytes(ASSUMED_CAPABILITY),
                      "torch.cuda.get_device_properties", ASSUMED_CAPABILITY, properties.gcnArchName.partition(":")[0])
    capability = (properties.major, properties.minor)
    return Target(properties.name, "cuda", properties.total_memory, _context_bytes(capability),
                  "torch.cuda.get_device_properties", capability)


def parse_memory(text: str) -> int:
    """Parse a memory size (bytes): `16GiB`, `1.5 TiB`, `16GB` (powers of ten), or a plain number of bytes."""
    match = _MEMORY.fullmatch(text)
    if match is None or match[2].upper() not in _UNITS:
        raise UserError(f"'{text}' is not an amount of memory: write it as 16GiB, 900MiB, 16GB, or in bytes")
    num_bytes = int(float(match[1]) * _UNITS[match[2].upper()])
    if num_bytes < 1:
        raise UserError(f"'{text}' is less than a byte: write it as 16GiB, 900MiB, 16GB, or in bytes")
    if num_bytes > _MOST_BYTES:
        raise UserError(f"'{text}' is more than any device has: write it as 16GiB, 900MiB, 16GB, or in bytes")
    return num_bytes


def _context_bytes(capability: tuple[int, int]) -> int:
    """Return the context size of the newest known architecture that is not newer than the device."""
    major = max((known for known in _BARE_CONTEXT_BYTES if known <= capability[0]), default=min(_BARE_CONTEXT_BYTES))
    return _BARE_CONTEXT_BYTES[major] + _LOADED_BYTES
