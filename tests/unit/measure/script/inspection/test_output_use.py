"""Outputs without a gradient are counted."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from charact.measure.script.inspection.gradient_use import OutputUse


@pytest.mark.parametrize(("shape", "num_ignored", "expected"), [
    ((4, 30), 24, [{"layer": "head", "num_rows": 120, "num_used_rows": 24}]),
    ((4, 30), 0, []),
    ((21,), 20, []),  # samples do not count
])
def test_ignored_tokens_are_not_used(shape: tuple[int, ...], num_ignored: int, expected: list[object]) -> None:
    head, outputs = nn.Linear(8, 50), OutputUse()
    logits, labels = head(torch.randn(*shape, 8)), torch.randint(0, 50, shape)
    labels[..., :num_ignored] = -100
    outputs.watch("head", head, logits)
    functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=-100).backward()
    assert outputs.unused() == expected


def test_calls_add_up_and_those_without_gradients_do_not_count() -> None:
    layer, outputs = nn.Linear(8, 8), OutputUse()
    for _ in range(2):
        output = layer(torch.randn(3, 10, 8))
        outputs.watch("layer", layer, output)
        output[:, -1].relu().sum().backward()  # the last token of sequences
    with torch.no_grad():
        outputs.watch("layer", layer, layer(torch.randn(3, 10, 8)))
    outputs.watch("layer", layer, None)
    (facts,) = outputs.unused()
    assert facts["num_rows"] == 60
    assert 0 < facts["num_used_rows"] <= 6
