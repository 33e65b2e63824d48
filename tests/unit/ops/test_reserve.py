"""The copy of cuDNN's reserve, which autograd makes because the graph of a timed backward pass is kept."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from charact.ops import all_kinds, parse_problem
from charact.ops.numerics import reserve_copy


def test_the_reserve_is_copied_as_a_whole() -> None:
    reserve = torch.ones(1000, dtype=torch.uint8)
    result: Any = SimpleNamespace(grad_fn=SimpleNamespace(_saved_result3=reserve))
    copy = reserve_copy(result, torch.ones(1))
    assert torch.equal(copy, reserve)
    assert copy.data_ptr() != reserve.data_ptr()


def test_pytorch_s_native_layers_have_none() -> None:
    result = torch.ones(3, requires_grad=True).mul(2)
    assert reserve_copy(result).numel() == 0


@pytest.mark.parametrize(("device", "direction", "excluded"), [
    ("cuda", "backward_input", True), ("cuda", "backward_weight", True), ("cuda", "forward", False),
    ("cpu", "backward_input", False)])
def test_it_is_excluded_from_backward_passes_on_cuda(
        monkeypatch: pytest.MonkeyPatch, device: str, direction: str, excluded: bool) -> None:
    monkeypatch.setattr(torch, "Generator", lambda device: torch._C.Generator())
    problem = parse_problem("rnn:lstm:8x2x3")
    prepared = all_kinds()["rnn"].prepare(problem, direction, "fp32", torch.device(device))
    assert (prepared.excluded is reserve_copy) == excluded
