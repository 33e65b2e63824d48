"""Update all tensors of an optimizer in one fused operator."""

from charact.remedies.patching import change_arguments
from charact.remedies.program import Program, place_of
from charact.remedies.remedy import Remedy, Setting

_CLASSES = ("SGD", "Adam", "AdamW", "Adagrad")
_WITHOUT_FINDING = 0.3
"""Share of the phase update that is expected where no finding says more."""


def _settings(program: Program) -> list[Setting] | str:
    optimizers = [each for each in program.settings.optimizers if each.class_ in _CLASSES]
    if not optimizers:
        return f"no optimizer with a fused step ({', '.join(_CLASSES)})"
    optimizers = [each for each in optimizers if each.implementation != "fused"]
    if not optimizers:
        return "the optimizer is fused already"
    largest = max(optimizers, key=lambda each: each.num_parameters or 0)
    expected = program.expected_frac("optimizer_loop") or _WITHOUT_FINDING * program.share("update")
    values = {"name": largest.class_, "file": largest.file, "line": largest.line}
    # PyTorch refuses both. On a CPU, only the program itself chooses foreach.
    added = "foreach=None, fused=True" if program.on_cpu and largest.implementation == "foreach" else "fused=True"
    return [Setting("fused", values, "fused=True", f"{largest.class_}(…, {added})", place_of(largest), added, expected)]


def _apply(name: str, file: str | None, line: int | None) -> None:
    import torch

    change_arguments(getattr(torch.optim, name), {"fused": True, "foreach": None}, file, line)


REMEDY = Remedy("fused", _settings, _apply, numerics="rounded", findings=("optimizer_loop",))
