"""Losses that trials record, and how those of two trials differ."""

import math

import pytest
import torch

from charact.remedies.losses import MOST_LOSSES, LossRecorder, difference_frac


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> LossRecorder:
    monkeypatch.setattr(torch.Tensor, "backward", torch.Tensor.backward)  # which is restored after the test
    return LossRecorder()


def test_the_first_losses_are_recorded_and_backwards_run(recorder: LossRecorder) -> None:
    weight = torch.ones(2, requires_grad=True)
    for number in range(MOST_LOSSES + 3):
        (number * weight.sum()).backward()
    assert recorder.values() == [2.0 * number for number in range(MOST_LOSSES)]
    assert weight.grad is not None
    assert weight.grad.tolist() == [sum(range(MOST_LOSSES + 3))] * 2


def test_a_loss_is_recorded_as_it_was_then(recorder: LossRecorder) -> None:
    weight = torch.ones(1, requires_grad=True)
    loss = (3 * weight).sum()
    loss.backward()
    with torch.no_grad():
        loss.zero_()
    assert recorder.values() == [3.0]


def test_arguments_pass_and_tensors_of_several_elements_are_no_losses(recorder: LossRecorder) -> None:
    weight = torch.ones(2, requires_grad=True)
    (3 * weight).backward(torch.tensor([1.0, 2.0]))
    assert weight.grad is not None
    assert weight.grad.tolist() == [3.0, 6.0]
    assert recorder.values() == []
    loss = weight[:1] * 5
    loss.backward(gradient=torch.tensor([2.0]), retain_graph=True)
    loss.backward(torch.tensor([1.0]))
    assert recorder.values() == [5.0, 5.0]
    assert weight.grad.tolist() == [18.0, 6.0]


@pytest.mark.parametrize(("base", "new", "expected"), [
    ([1.0, 2.0], [1.0, 2.0], 0.0),
    ([1.0, 2.0], [1.0, 2.5], 0.2),
    ([1.0, 2.5], [1.0, 2.0], 0.2),
    ([1.0, 4.0], [2.0, 5.0], 0.5),
    ([-1.0], [1.0], 2.0),
    ([0.0], [0.0], 0.0),
    ([0.0], [1e-30], 1.0),
    ([-4.0], [-5.0], 0.2),
    ([math.nan], [math.nan], 0.0),
    ([math.inf], [math.inf], 0.0),
    ([math.inf], [-math.inf], math.inf),
    ([1.0], [math.nan], math.inf),
    ([math.nan], [1.0], math.inf),
    ([math.inf], [1.0], math.inf),
    ([math.nan], [math.inf], math.inf),
    # Rounding grows by at most 300 times an update; what comes after it has grown does not count.
    ([1.0, 1.0, 1.0, 1.0], [1.0, 1.0 - 2**-17, 1.0 - 2**-9, 0.5], 2**-17),
    ([1.0, 1.0, 1.0], [1.0, 1.0 - 2**-18, 1.0 - 2**-9], 2**-9),
    ([1.0, 1.0], [1.0 - 2**-9, 0.5], 0.5),
    ([1.0, 1.0], [1.0 - 2**-10, math.nan], math.inf),
    ([], [], None),
    ([], [1.0], None),
    ([1.0], [], None),
    ([1.0], [1.0, 1.0], None),
])
def test_difference_of_losses(base: list[float], new: list[float], expected: float | None) -> None:
    assert difference_frac(base, new) == expected
