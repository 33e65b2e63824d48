"""Low-rank adapters (LoRA): training of few new weights while those of the model stay as they are.

Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021, section 4: query and value projections of
attention are adapted (section 4.2), B begins as zero, and the factor alpha / rank is 1. A is drawn as in the authors'
code (microsoft/LoRA, loralib/layers.py).
"""

import math
from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn import functional

from charact.core.errors import UserError

ADAPTED = (("query", "value"), ("q_proj", "v_proj"))
"""Names of the linear layers of an attention that are adapted together: those here, and those of Hugging Face."""


class AdaptedLinear(nn.Module):
    """A linear layer W x + b with frozen weights, and B A x added to its outputs."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.a = nn.Parameter(base.weight.new_empty(rank, base.in_features))
        self.b = nn.Parameter(base.weight.new_zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """(..., inputs) to (..., outputs)."""
        outputs: Tensor = self.base(x)
        return outputs + functional.linear(functional.linear(x, self.a), self.b)


def adapt(model: nn.Module, rank: int, name: str) -> None:
    """Freeze a model, and add adapters of a rank to the query and value layers of its attentions; `name` is for errors.

    Raises:
        UserError: it has no such layers, or one of them is narrower than the rank.
    """
    layers = list(_adapted_layers(model))
    if not layers:
        names = " or ".join(" and ".join(pair) for pair in ADAPTED)
        raise UserError(f"--lora adapts linear layers of attention ({names}), but {name} has none: leave --lora out")
    narrowest = min(min(layer.in_features, layer.out_features) for _, _, layer in layers)
    if rank > narrowest:
        raise UserError(f"--lora {rank} is more than the width {narrowest} of an adapted layer of {name}: give at most "
                        f"{narrowest}")
    model.requires_grad_(False)
    for attention, own_name, layer in layers:
        setattr(attention, own_name, AdaptedLinear(layer, rank))


def _adapted_layers(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    """Yield each attention with the name and the layer of its query and of its value."""
    for module in model.modules():
        for names in ADAPTED:
            layers = [getattr(module, name, None) for name in names]
            if all(isinstance(layer, nn.Linear) for layer in layers):
                yield from ((module, name, layer) for name, layer in zip(names, layers, strict=True)
                            if isinstance(layer, nn.Linear))


def num_trainable(model: nn.Module) -> int:
    """Return the number of parameters that are trained."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
