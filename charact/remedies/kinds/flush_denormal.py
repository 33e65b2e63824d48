"""Treat denormal numbers as zero."""

from charact.remedies.program import Program
from charact.remedies.remedy import Remedy, Setting


def _settings(program: Program) -> list[Setting] | str:
    if not program.on_cpu:
        return "the model is not on the CPU"
    if not (expected := program.expected_frac("denormals")):
        return "few numbers are denormal"
    return [Setting("flush-denormal", {}, "set_flush_denormal(True)", "torch.set_flush_denormal(True)",
                    expected_frac=expected)]


def _apply() -> None:
    import torch

    torch.set_flush_denormal(True)


REMEDY = Remedy("flush-denormal", _settings, _apply, numerics="rounded", findings=("denormals",))
