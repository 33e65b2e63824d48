"""Store images and weights of convolutions as NHWC."""

from typing import Any

from charact.remedies.patching import OutermostCalls
from charact.remedies.program import Program
from charact.remedies.remedy import Remedy, Setting

_SAVED_FRAC = 0.15
"""Share of the convolutions' time that is expected to be saved."""


def _settings(program: Program) -> list[Setting] | str:
    if program.is_watched:
        models = [each for each in program.settings.models if each.num_convolutions]
        if not models:
            return "no model has convolutions"
        if all(each.channels_last for each in models):
            return "the weights of the convolutions are NHWC already"
    elif program.run.options.channels_last:
        return "--channels-last is set already"
    share = program.operator_share("convolution")
    if not program.is_watched and not share:
        return "no model has convolutions"
    return [Setting("channels-last", {}, "channels_last",
                    program.change("model = model.to(memory_format=torch.channels_last), and the images, too",
                                   "--channels-last"),
                    expected_frac=_SAVED_FRAC * share)]


def _apply() -> None:
    import torch

    def converted(value: Any) -> Any:
        is_image = isinstance(value, torch.Tensor) and value.ndim == 4
        return value.contiguous(memory_format=torch.channels_last) if is_image else value

    OutermostCalls(on_first=lambda module: module.to(memory_format=torch.channels_last), inputs=converted)


REMEDY = Remedy("channels-last", _settings, _apply, numerics="rounded")
