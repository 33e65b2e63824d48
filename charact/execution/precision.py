"""Precisions of cases: their settings, and where they are supported."""

import contextlib
import importlib.util
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from charact.core.errors import UserError
from charact.record.schema import PRECISIONS as NAMES


@dataclass(frozen=True)
class Precision:
    """Dtypes of a case, and how products are rounded."""

    autocast: torch.dtype | None = None
    """Dtype of autocast; None without autocast."""
    weights: torch.dtype = torch.float32
    """Dtype of the weights and images; without autocast, of all results too."""
    tf32: bool = False
    """Whether NVIDIA's tensor cores may round the factors of float32 products to a mantissa of 10 bits."""
    scaled: bool = False
    """Whether the loss is scaled, so that small gradients do not underflow."""
    quantized: bool = False
    """Whether weights of linear layers are 8-bit integers with a scale for each row, for inference only."""


PRECISIONS = {
    "fp32": Precision(),
    "tf32": Precision(tf32=True),
    "bf16": Precision(autocast=torch.bfloat16),
    "fp16": Precision(autocast=torch.float16, scaled=True),
    "pure-bf16": Precision(weights=torch.bfloat16),
    "int8-weights": Precision(quantized=True),
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
    if name == "int8-weights" and importlib.util.find_spec("torchao") is None:
        return "int8-weights needs torchao, which is not installed: pip install torchao"
    if torch.version.hip is not None:  # AMD's numbers of architectures are not compute capabilities
        return "tf32 is a mode of NVIDIA's tensor cores: use --precision fp32" if name == "tf32" else None
    if name in ("tf32", "bf16", "pure-bf16") and device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if capability < _FIRST_WITH_TF32:
            number = ".".join(map(str, capability))
            return (f"{name} needs a GPU of compute capability 8.0 (Ampere) or later, this one has {number}: "
                    "use --precision fp32 or fp16")
    return None


def quantize_weights(model: torch.nn.Module) -> None:
    """Replace the weights of a model's linear layers by 8-bit integers with a scale for each row, by torchao.

    Raises:
        UserError: the model has no such layer, or torchao does not suit this PyTorch.
    """
    disabled, logging.root.manager.disable = logging.root.manager.disable, logging.WARNING
    try:  # torchao logs that its kernels for GPUs cannot be loaded
        from torchao.quantization import Int8Tensor, Int8WeightOnlyConfig, quantize_
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        first = str(error).partition("\n")[0]
        raise UserError(f"torchao does not suit PyTorch {torch.__version__} ({first}): upgrade torchao") from error
    finally:
        logging.root.manager.disable = disabled
    quantize_(model, Int8WeightOnlyConfig(set_inductor_config=False))  # which would be set for later cases, too
    if not any(isinstance(parameter, Int8Tensor) for parameter in model.parameters()):
        raise UserError("int8-weights quantizes linear layers, but the model has none: use another --precision")


def float32_settings() -> dict[str, Any]:
    """Return how float32 products are rounded on CUDA now: float32_matmul_precision and cudnn_allow_tf32.

    PyTorch's functions of these names raise from torch 2.9 on if the program has used `fp32_precision`, whose values
    are returned then.
    """
    try:
        return {"float32_matmul_precision": torch.get_float32_matmul_precision(),
                "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32}
    except RuntimeError:
        matrices, *convolutions = (each.fp32_precision for each in _fp32_precisions()[:3])
        return {"float32_matmul_precision": {"tf32": "high", "bf16": "medium"}.get(matrices, "highest"),
                "cudnn_allow_tf32": "tf32" in convolutions}


@contextlib.contextmanager
def float32_products(name: str) -> Iterator[None]:
    """Let float32 products on CUDA be rounded to TF32 if the precision `name` is tf32, and never otherwise.

    PyTorch's default rounds the products of convolutions, but not of matrices. PyTorch has two interfaces for this;
    both are set, so that they agree.
    """
    tf32 = PRECISIONS[name].tf32
    before = float32_settings(), [each.fp32_precision for each in _fp32_precisions()]
    wanted = {"float32_matmul_precision": "high" if tf32 else "highest", "cudnn_allow_tf32": tf32}
    _set_float32(wanted, ["tf32" if tf32 else "ieee"] * 3)
    try:
        yield
    finally:
        _set_float32(*before)


def _set_float32(settings: dict[str, Any], precisions: list[str]) -> None:
    torch.set_float32_matmul_precision(settings["float32_matmul_precision"])
    torch.backends.cudnn.allow_tf32 = settings["cudnn_allow_tf32"]
    for each, precision in zip(_fp32_precisions(), precisions, strict=False):
        # "none" inherits the general setting. If that is unset too, products are exact, as with "ieee".
        if each.fp32_precision != precision and (each.fp32_precision, precision) != ("none", "ieee"):
            each.fp32_precision = precision


def _fp32_precisions() -> list[Any]:
    """Return PyTorch's objects with the setting `fp32_precision`; none before torch 2.9.

    These are matrices, convolutions and recurrent layers on CUDA, and matrices on a CPU, in this order.
    """
    backends: Any = torch.backends
    if not hasattr(backends.cuda.matmul, "fp32_precision"):
        return []
    return [backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn, backends.mkldnn.matmul]
