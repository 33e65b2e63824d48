"""NVIDIA's management library: initialization, error messages, and the lookup of PyTorch's GPU."""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pynvml
import torch

from charact.measure.counters._support.protocol import BUSY, Unavailable, UnavailableError

UuidOf = Callable[[torch.device], str]
"""Returns a device's UUID, with or without the prefix `GPU-`."""

_KNOWN_ERRORS = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: Unavailable(
        "no NVIDIA driver here: libnvidia-ml.so.1 is not found",
        "install NVIDIA's driver, or give the container its GPUs (--gpus all)"),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: Unavailable("NVIDIA's kernel driver is not loaded", "sudo modprobe nvidia"),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: Unavailable(
        "NVML and NVIDIA's kernel driver are of different versions",
        "restart the machine: the driver was updated while it ran"),
    pynvml.NVML_ERROR_NO_PERMISSION: Unavailable(
        "NVML denies this user access to the GPU", "ask an administrator for access to /dev/nvidia*"),
    pynvml.NVML_ERROR_IN_USE: BUSY,
    pynvml.NVML_ERROR_GPU_IS_LOST: Unavailable(
        "the GPU is lost: the driver cannot reach it any more",
        "restart the machine; `sudo dmesg | grep Xid` shows why"),
    pynvml.NVML_ERROR_RESET_REQUIRED: Unavailable(
        "the GPU needs a reset", "end its processes, then `sudo nvidia-smi --gpu-reset`"),
}
_LASTING = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED, pynvml.NVML_ERROR_UNINITIALIZED)


@dataclass(frozen=True)
class Gpu:
    """NVML's handles of a GPU, and of its MIG instance if the case runs on one."""

    handle: Any
    instance: Any = None


@contextlib.contextmanager
def nvml_errors() -> Iterator[None]:
    """Raise NVML's errors as `UnavailableError`, with reason and remedy."""
    try:
        yield
    except pynvml.NVMLError as error:
        raise UnavailableError(_KNOWN_ERRORS.get(error.value, Unavailable(f"NVML: {error}"))) from error


def is_lasting(error: pynvml.NVMLError) -> bool:
    """Return whether no more values can be read after an error."""
    return error.value in _LASTING


@contextlib.contextmanager
def started() -> Iterator[contextlib.ExitStack]:
    """Initialize NVML, whose errors are raised as `UnavailableError`; yield what ends it.

    A reading that takes all with `pop_all` ends it later. NVML counts its initializations.
    """
    with nvml_errors(), contextlib.ExitStack() as resources:
        pynvml.nvmlInit()
        resources.callback(pynvml.nvmlShutdown)
        yield resources


def torch_uuid(device: torch.device) -> str:
    """Return CUDA's UUID of a device."""
    return str(torch.cuda.get_device_properties(device).uuid)


def find_gpu(uuid: str) -> Gpu:
    """Return the GPU with a UUID, which CUDA and NVML share, unlike indices.

    Under MIG, some drivers return the instance's UUID to CUDA, others the whole GPU's.

    Raises:
        UnavailableError: there is none, or its MIG instance is not known.
    """
    bare = uuid.removeprefix("GPU-")
    try:
        gpu = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{bare}")
    except pynvml.NVMLError_NotFound:
        return _instance(f"MIG-{bare}")
    try:
        is_divided = pynvml.nvmlDeviceGetMigMode(gpu)[0] == pynvml.NVML_DEVICE_MIG_ENABLE
    except pynvml.NVMLError_NotSupported:  # before Ampere
        is_divided = False
    if not is_divided:
        return Gpu(gpu)
    name = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0].strip()
    if not name.startswith("MIG-"):
        raise UnavailableError("the GPU has several MIG instances, and the case's is not known",
                               "name it: CUDA_VISIBLE_DEVICES=MIG-..., as `nvidia-smi -L` lists it")
    return _instance(name)


@contextlib.contextmanager
def sm_clock_reader(device: torch.device, uuid_of: UuidOf = torch_uuid) -> Iterator[Callable[[], float] | None]:
    """Yield a function that returns the clock of a device's multiprocessors (Hz); None if NVML does not report it."""
    with contextlib.ExitStack() as resources:
        read: Callable[[], float] | None = None
        # ROCm's properties may have no UUID.
        with contextlib.suppress(UnavailableError, AttributeError), started() as session:
            gpu = find_gpu(uuid_of(device))

            def clock_hz() -> float:
                return float(pynvml.nvmlDeviceGetClockInfo(gpu.handle, pynvml.NVML_CLOCK_SM)) * 1e6

            clock_hz()
            read = clock_hz
            resources.push(session.pop_all())
        yield read


def _instance(name: str) -> Gpu:
    try:
        instance = pynvml.nvmlDeviceGetHandleByUUID(name)
    except pynvml.NVMLError_NotFound as error:
        raise UnavailableError(f"NVML has no device {name.removeprefix('MIG-')}",
                               "compare CUDA_VISIBLE_DEVICES with `nvidia-smi -L`") from error
    return Gpu(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(instance), instance)
