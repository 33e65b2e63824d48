"""Let cuDNN choose the fastest algorithm for each shape of a convolution."""

from charact.remedies.program import Program
from charact.remedies.remedy import Remedy, Setting

_SAVED_FRAC = 0.1


def _settings(program: Program) -> list[Setting] | str:
    if not program.entry.device.startswith("cuda"):
        return "cuDNN needs an NVIDIA GPU"
    if program.settings.cudnn_benchmark:
        return "cuDNN's benchmark is on already"
    if not (share := program.operator_share("convolution")):
        return "no operator is a convolution"
    return [Setting("cudnn-benchmark", {}, "cudnn.benchmark", "torch.backends.cudnn.benchmark = True",
                    expected_frac=_SAVED_FRAC * share)]


def _apply() -> None:
    import torch

    torch.backends.cudnn.benchmark = True


REMEDY = Remedy("cudnn-benchmark", _settings, _apply, numerics="rounded")
