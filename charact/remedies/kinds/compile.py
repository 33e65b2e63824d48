"""Compile the outermost models by `torch.compile`."""

from charact.remedies.patching import OutermostCalls
from charact.remedies.program import Program
from charact.remedies.remedy import Remedy, Setting

_SAVED_FRAC = 0.1
"""Share of forward and backward that is expected to be saved."""


def _settings(program: Program) -> list[Setting] | str:
    if program.on_cpu and not program.has_compiler:
        return "no C++ compiler is installed: apt-get install g++"
    if program.run.manifest["options"].get("compiled") or program.entry.passes.timing.compile_s:
        return "the model is compiled already"
    if program.settings.compile and program.settings.compile.num_graphs:
        return "the program compiles already"
    share = program.share("forward") + program.share("backward")
    return [Setting("compile", {}, "torch.compile", "model = torch.compile(model)", expected_frac=_SAVED_FRAC * share)]


def _apply() -> None:
    OutermostCalls(on_first=lambda module: module.compile())


REMEDY = Remedy("compile", "torch.compile of the outermost models", _settings, _apply, numerics="rounded")
