"""Rows of frozen models' inputs that come again."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from charact.measure.script.program.frozen_models import FrozenModels

ROWS = torch.randn(96, 40, generator=torch.Generator().manual_seed(0))


def run(model: nn.Module, batches: list[tuple[torch.Tensor, ...]], *, grad: bool = False,
        after: Callable[[], object] = lambda: None) -> list[tuple[int, int, int]]:
    frozen = FrozenModels()
    with torch.set_grad_enabled(grad):
        for tensors in [batches[0], *batches]:  # the first call is not compared
            frozen.call(7, model, list(tensors))
            after()
    return frozen.rows()


def epochs(num: int, rows: torch.Tensor = ROWS) -> list[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(1)
    return [(rows[chosen],) for _ in range(num) for chosen in torch.randperm(96, generator=generator).split(16)]


@pytest.mark.parametrize("rows", [ROWS, (1000 * ROWS).long(), ROWS.reshape(96, 2, 4, 5), ROWS > 0, ROWS.half()])
def test_rows_of_earlier_epochs_in_any_order(rows: torch.Tensor) -> None:
    assert run(nn.Linear(40, 2), epochs(3, rows)) == [(7, 288, 192)]


def test_other_rows_are_new() -> None:
    assert run(nn.Linear(40, 2), [(ROWS + step,) for step in range(3)]) == [(7, 288, 0)]
    levels = [(ROWS, torch.full((96,), float(step))) for step in range(3)]
    assert run(nn.Linear(40, 2), levels) == [(7, 288, 0)]


def test_rows_that_repeat_within_a_call_only_are_new() -> None:
    assert run(nn.Linear(40, 2), [(ROWS[step].expand(32, 40),) for step in range(4)]) == [(7, 128, 0)]


def test_weights_that_change_are_not_frozen() -> None:
    model = nn.Linear(40, 2)
    assert run(model, epochs(2), after=lambda: model.weight.data.mul_(0.99)) == []
    assert run(model, epochs(2), grad=True) == []
    assert run(model.requires_grad_(False), epochs(2), grad=True) == [(7, 192, 96)]


def test_a_model_that_is_trained_later_is_not_frozen() -> None:
    model, frozen = nn.Linear(40, 2), FrozenModels()
    with torch.no_grad():
        frozen.call(7, model, [ROWS])
    frozen.call(7, model, [ROWS])
    with torch.no_grad():
        frozen.call(7, model, [ROWS])
    assert frozen.rows() == []


def test_odd_inputs_are_left_out() -> None:
    for odd in (torch.tensor(1.0), torch.eye(3).to_sparse(), torch.empty(3, device="meta")):
        assert run(nn.Linear(40, 2), [(odd,), (odd,)]) == []
    assert run(nn.ReLU(), epochs(2)) == []


def test_the_program_s_inputs_and_random_numbers_stay() -> None:
    inputs, model = ROWS.double(), nn.Linear(40, 2)
    state = torch.get_rng_state()
    assert run(model, [(inputs,), (inputs,)]) == [(7, 192, 96)]
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(inputs, ROWS.double())
