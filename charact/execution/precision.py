"""Precisions that a case can run in: what each sets, and where it cannot run."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from charact.record.schema import PRECISIONS as NAMES


@dataclass(frozen=True)
class Precision:
    """How numbers are kept and multiplied."""

    autocast: torch.dtype | None = None
    """Type that autocast computes in; None runs without it."""
    weights: torch.dtype = torch.float32
    """Type of the weights, of the pictures, and so of everything that is computed from them."""
    tf32: bool = False
    """Whether NVIDIA's tensor cores may round the factors of float32 products to 10 bits."""
    scaled: bool = False
    """Whether the loss is scaled, so that small gradients do not vanish."""


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
"""Compute capability of Ampere, whose tensor cores were the first with TF32 and bfloat16."""


def refusal(name: str, device: torch.device) -> str | None:
    """Why a precision is not measured on a device, with what to do; None where it is."""
    if name == "fp16" and device.type == "cpu":
        return f"fp16 is not measured on a CPU: {_NO_FP16_ON_CPU}"
    if name == "tf32" and device.type == "cpu":
        return "tf32 is a mode of NVIDIA's tensor cores, which a CPU has not: use --precision fp32 or a CUDA device"
    if name in ("tf32", "bf16", "pure-bf16") and device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if capability < _FIRST_WITH_TF32:
            number = ".".join(map(str, capability))
            return (f"{name} needs a GPU of compute capability 8.0 (Ampere) or later, this one has {number}: "
                    "use --precision fp32 or fp16")
    return None


@contextlib.contextmanager
def float32_products(name: str) -> Iterator[None]:
    """Let float32 products on CUDA be rounded to TF32 in the precision of that name, and in no other.

    PyTorch by default rounds those of convolutions, not those of matrices: then fp32 would be neither.
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
