"""Outputs without a gradient are counted."""

import torch
from torch import nn
from torch.nn import functional

from charact.measure.script.inspection.gradient_use import OutputUse


def unused_after(tokens: torch.Tensor, labels: torch.Tensor) -> list[dict[str, object]]:
    head, outputs = nn.Linear(8, 50), OutputUse()
    logits = head(tokens)
    outputs.watch("head", head, logits)
    functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=-100).backward()
    return outputs.unused()


def test_ignored_tokens_are_not_used() -> None:
    labels = torch.randint(0, 50, (4, 30))
    labels[:, :24] = -100
    assert unused_after(torch.randn(4, 30, 8), labels) == [{"layer": "head", "num_rows": 120, "num_used_rows": 24}]


def test_layers_whose_outputs_are_used_are_left_out() -> None:
    assert unused_after(torch.randn(4, 30, 8), torch.randint(0, 50, (4, 30))) == []


def test_samples_do_not_count() -> None:
    labels = torch.tensor([-100] * 20 + [3])
    assert unused_after(torch.randn(21, 8), labels) == []


def test_the_last_token_of_sequences_and_calls_that_add_up() -> None:
    layer, outputs = nn.Linear(8, 8), OutputUse()
    for _ in range(2):
        output = layer(torch.randn(3, 10, 8))
        outputs.watch("layer", layer, output)
        output[:, -1].relu().sum().backward()
    (facts,) = outputs.unused()
    assert facts["num_rows"] == 60
    assert 0 < facts["num_used_rows"] <= 6


def test_nothing_is_watched_without_gradients() -> None:
    layer, outputs = nn.Linear(8, 8), OutputUse()
    with torch.no_grad():
        outputs.watch("layer", layer, layer(torch.randn(3, 10, 8)))
    outputs.watch("layer", layer, None)
    assert outputs.unused() == []
