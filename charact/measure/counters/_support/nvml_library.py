"""NVIDIA's management library: opening it, its errors as refusals, and finding the GPU that PyTorch computes on."""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pynvml
import torch

from charact.measure.counters._support.permissions import BUSY
from charact.measure.counters._support.protocol import Refusal, Refused

UuidOf = Callable[[torch.device], str]
"""Tells a device's UUID, with or without the prefix `GPU-`."""

_IN_WORDS = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: Refusal(
        "no NVIDIA driver here: libnvidia-ml.so.1 is not found",
        "install NVIDIA's driver, or give the container its GPUs (--gpus all)"),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: Refusal("NVIDIA's kernel driver is not loaded", "sudo modprobe nvidia"),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: Refusal(
        "NVML and NVIDIA's kernel driver are of different versions",
        "restart the machine: the driver was updated while it ran"),
    pynvml.NVML_ERROR_NO_PERMISSION: Refusal(
        "NVML refuses this user the GPU", "ask an administrator for access to /dev/nvidia*"),
    pynvml.NVML_ERROR_IN_USE: BUSY,
    pynvml.NVML_ERROR_GPU_IS_LOST: Refusal(
        "the GPU is lost: the driver cannot reach it any more",
        "restart the machine; `sudo dmesg | grep Xid` says why"),
    pynvml.NVML_ERROR_RESET_REQUIRED: Refusal(
        "the GPU needs a reset", "end what runs on it, then `sudo nvidia-smi --gpu-reset`"),
}
_LASTING = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED, pynvml.NVML_ERROR_UNINITIALIZED)


@dataclass(frozen=True)
class Gpu:
    """A GPU, and where the case runs on a MIG instance of it that one, as NVML's handles."""

    handle: Any
    instance: Any = None


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Raise NVML's errors as refusals in words."""
    try:
        yield
    except pynvml.NVMLError as error:
        refusal = _IN_WORDS.get(error.value, Refusal(words(error)))
        raise Refused(refusal.reason, refusal.remedy) from error


def words(error: pynvml.NVMLError) -> str:
    """An error as NVML words it."""
    return f"NVML: {error}"


def is_lasting(error: pynvml.NVMLError) -> bool:
    """Whether nothing more can be read after an error."""
    return error.value in _LASTING


def start(resources: contextlib.ExitStack) -> None:
    """Open NVML until the resources are given back; it counts how often it was opened."""
    pynvml.nvmlInit()
    resources.callback(pynvml.nvmlShutdown)


def torch_uuid(device: torch.device) -> str:
    """The UUID that CUDA gives a device."""
    return str(torch.cuda.get_device_properties(device).uuid)


def find_gpu(uuid: str) -> Gpu:
    """The GPU of a UUID, which unlike an index means the same to CUDA and to NVML.

    Under MIG drivers differ in whether they give CUDA the instance's UUID or that of the whole GPU.

    Raises:
        Refused: there is none, or it cannot be told which of a GPU's instances it is.
    """
    bare = uuid.removeprefix("GPU-")
    try:
        gpu = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{bare}")
    except pynvml.NVMLError_NotFound:
        return _instance(f"MIG-{bare}")
    if not _is_divided(gpu):
        return Gpu(gpu)
    name = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0].strip()
    if not name.startswith("MIG-"):
        raise Refused("which MIG instance of the GPU the case runs on cannot be told",
                      "name it: CUDA_VISIBLE_DEVICES=MIG-..., as `nvidia-smi -L` lists it")
    return _instance(name)


def _instance(name: str) -> Gpu:
    try:
        instance = pynvml.nvmlDeviceGetHandleByUUID(name)
    except pynvml.NVMLError_NotFound as error:
        raise Refused(f"NVML has no device {name.removeprefix('MIG-')}",
                      "compare CUDA_VISIBLE_DEVICES with `nvidia-smi -L`") from error
    return Gpu(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(instance), instance)


def _is_divided(gpu: Any) -> bool:
    try:
        current, _ = pynvml.nvmlDeviceGetMigMode(gpu)
    except pynvml.NVMLError_NotSupported:  # before Ampere
        return False
    return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)
