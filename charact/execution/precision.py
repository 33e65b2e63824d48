"""Precisions of cases: their settings, and where they are supported."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from charact.record.schema import PRECISIONS as NAMES


@dataclass(frozen=True)
class Precision:
    """Types of numbers and of products."""

    autocast: torch.dtype | None = None
    """Type of autocast; None without autocast."""
    weights: torch.dtype = torch.float32
    """Type of the weights and images, and so of all results."""
    tf32: bool = False
    """Whether NVIDIA's tensor cores may round the factors of float32 products to 10 bits."""
    scaled: bool = False
    """Whether the loss is scaled, to keep small gradients from underflow."""


PRECISIONS = {
    "fp32": Precision(),
    "tf32": Precision(tf32=True),
    "bf16": Precision(autocast=torch.bfloat16),
    "fp16": Precision(autocast=torch.float16, scaled=True),
    "pure-bf16": Precision(weights=torch.bfloat16),
}
assert tuple(PRECISIONS) == NAMES

# Measured: resnet18 at 64 px, batch 4, torch 2.13 on a Zen 5 EPYC: 178 ms against 10.5 ms in fp32 and in bf16.
_NO_FP16_ON_CPU = "PyTorch emulates it there, many times slower than fp32; use --precision bf16 or a CUDA device"
_FIRST_WITH_TF32 = (8, 0)
"""Compute capability of Ampere, the first GPUs with TF32 and bfloat16."""


def unsupported_reason(name: str, device: torch.device) -> str | None:
    """Return why a precision is not supported on a device, with a remedy; None if it is."""
    if name == "fp16" and device.type == "cpu":
        return f"fp16 is not measured on a CPU: {_NO_FP16_ON_CPU}"
    if name == "tf32" and device.type == "cpu":
        return "tf32 is a mode of NVIDIA's tensor cores, which a CPU lacks: use --precision fp32 or a CUDA device"
    if name in ("tf32", "bf16", "pure-bf16") and device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if capability < _FIRST_WITH_TF32:
            number = ".".join(map(str, capability))
            return (f"{name} needs a GPU of compute capability 8.0 (Ampere) or later, this one has {number}: "
                    "use --precision fp32 or fp16")
    return None


@contextlib.contextmanager
def float32_products(name: str) -> Iterator[None]:
    """Set the rounding of float32 products on CUDA to TF32 only for the precision with that name.

    PyTorch's default rounds those of convolutions, but not of matrices.
    """
    tf32 = PRECISIONS[name].tf32
    matrices, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(matrices)
        torch.backends.cudnn.allow_tf32 = convolutions
