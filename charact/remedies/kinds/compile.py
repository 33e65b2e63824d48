"""Compile the outermost models by `torch.compile`."""

from typing import Any

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
    return [Setting("compile", {}, "torch.compile", program.change("model = torch.compile(model)", "--compile"),
                    expected_frac=_SAVED_FRAC * share)]


def _apply() -> None:
    import torch

    def compile_whole(module: Any) -> None:
        call = module._call_impl

        def own_frame(*arguments: Any, **named: Any) -> Any:
            return call(*arguments, **named)

        # module.compile() would compile nothing, or each layer, of a module whose forward is PyTorch's own, such as
        # Sequential: the compiler starts at no frame of PyTorch.
        module._compiled_call_impl = torch.compile(own_frame)

    OutermostCalls(on_first=compile_whole)


REMEDY = Remedy("compile", _settings, _apply, numerics="rounded", is_slow=True)
