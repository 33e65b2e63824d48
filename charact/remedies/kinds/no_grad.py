"""Record no graph in calls of models in eval mode."""

from typing import Any

from charact.remedies.patching import OutermostCalls
from charact.remedies.program import Program
from charact.remedies.remedy import Remedy, Setting


def _settings(program: Program) -> list[Setting] | str:
    models = [each for each in program.settings.models if each.inference_with_grad]
    if not models:
        return "no model is called for inference with gradients"
    return [Setting("no-grad", {}, "torch.no_grad()", "with torch.no_grad(): around the evaluation",
                    expected_frac=program.expected_frac("inference_graph"))]


def _apply() -> None:
    import torch

    def around(module: Any) -> Any:
        return None if module.training else torch.no_grad()

    OutermostCalls(around=around)


REMEDY = Remedy("no-grad", _settings, _apply, saves_memory=True, findings=("inference_graph",))
