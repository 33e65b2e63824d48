"""Compute products and convolutions of a GPU in TF32."""

from charact.remedies.program import Program
from charact.remedies.remedy import Remedy, Setting

_SAVED_FRAC = 0.4


def _settings(program: Program) -> list[Setting] | str:
    if not program.entry.device.startswith("cuda"):
        return "TF32 needs an NVIDIA GPU"
    if program.settings.matmul_tf32:
        return "TF32 is allowed already"
    share = program.operator_share("convolution", "GEMM")
    return [Setting("tf32", {}, "TF32", 'torch.set_float32_matmul_precision("high")',
                    expected_frac=_SAVED_FRAC * share)]


def _apply() -> None:
    import torch

    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True


REMEDY = Remedy("tf32", _settings, _apply, numerics="changed")
