"""Compute products and convolutions in bfloat16 by autocast."""

from charact.remedies.patching import OutermostCalls
from charact.remedies.program import Program
from charact.remedies.remedy import Remedy, Setting

_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
"""Instruction sets that compute in bfloat16."""
_SAVED_FRAC = 0.3
"""Share of the products' time that is expected to be saved."""


def _settings(program: Program) -> list[Setting] | str:
    if program.on_cpu and not program.cpu_flags & _FLAGS:
        return "this CPU has no bf16 instructions"
    if program.entry.precision not in (None, "fp32", "as written"):
        return f"the precision is {program.entry.precision} already"
    device = program.entry.device.partition(":")[0]
    share = program.operator_share("convolution", "GEMM", "attention")
    return [Setting("bf16-autocast", {"device": device}, "bf16 autocast",
                    program.change(f'with torch.autocast("{device}", torch.bfloat16): around the forward and the loss',
                                   "--precision bf16"),
                    expected_frac=_SAVED_FRAC * share)]


def _apply(device: str) -> None:
    import torch

    OutermostCalls(around=lambda module: torch.autocast(device, torch.bfloat16))


REMEDY = Remedy("bf16-autocast", _settings, _apply, numerics="changed")
