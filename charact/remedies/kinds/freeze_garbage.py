"""Exempt the objects that exist before the loop from garbage collections."""

from charact.remedies.program import Program
from charact.remedies.remedy import Remedy, Setting


def _settings(program: Program) -> list[Setting] | str:
    if not (expected := program.expected_frac("garbage_collection")):
        return "garbage collections take little time"
    return [Setting("freeze-garbage", {}, "gc.freeze()", "gc.collect(); gc.freeze()  # before the loop",
                    expected_frac=expected)]


def _apply() -> None:
    import gc

    import torch

    original, is_frozen = torch.optim.Optimizer.zero_grad, False

    def freeze_first(self: torch.optim.Optimizer, *arguments: bool, **named: bool) -> None:
        nonlocal is_frozen
        if not is_frozen:
            is_frozen = True
            gc.collect()
            gc.freeze()
        original(self, *arguments, **named)

    torch.optim.Optimizer.zero_grad = freeze_first  # type: ignore[method-assign]


REMEDY = Remedy("freeze-garbage", _settings, _apply)
