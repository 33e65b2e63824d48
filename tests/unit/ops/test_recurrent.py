"""Recurrent layers: work by hand, by PyTorch's counter and as DeepBench published it."""

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from charact.measure.microbench.operation_timing import result_error
from charact.ops import DIRECTIONS, parse_problem
from charact.ops.kinds import rnn
from charact.ops.kinds.rnn import KIND
from charact.ops.numerics import reserve_copy, with_graph

CPU = torch.device("cpu")


@contextlib.contextmanager
def without_onednn() -> Iterator[None]:
    """Take layers apart: oneDNN's LSTM is a single operator, which PyTorch's counter does not know."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # setting any of its flags warns of one for another maker's GPUs
        with torch.backends.mkldnn.flags(enabled=False):  # type: ignore[no-untyped-call]
            yield


def published(text: str) -> float:
    found = KIND.published_flop(replace(parse_problem(text), suite="deepbench"), "forward")
    assert found is not None
    return found[0]


def test_deepbench_counts_one_product_and_a_sum_of_vanilla_layers() -> None:
    assert published("rnn:lstm:512x16x25") == 838_860_800
    assert published("rnn:gru:512x32x1") == 2 * 3 * 512**2 * 32
    assert published("rnn:relu:1760x16x50") == 2 * 1760**2 * 16 * 50 + 1760 * 16 * 50
    assert KIND.published_flop(parse_problem("rnn:relu:1760x16x50"), "forward") is None


def test_work_by_hand() -> None:
    # 3 gates of 4 numbers, by inputs of 5 and states of 4, for 2 sequences of 6 steps.
    problem = parse_problem("rnn:gru:4x2x6x5")
    assert KIND.flop(problem, "forward") == KIND.flop(problem, "backward_input") == 2 * 12 * 2 * 6 * (5 + 4)
    assert KIND.flop(problem, "backward_weight") == 2 * 12 * 2 * (6 * (5 + 4) + 5 * 4)
    weights, inputs, outputs, states = 12 * (5 + 4 + 2), 6 * 2 * 5, 6 * 2 * 4, 2 * 4
    assert KIND.num_bytes(problem, "forward", 4) == 4 * (weights + inputs + outputs + 2 * states)
    assert KIND.num_bytes(problem, "backward_input", 4) == 4 * (weights + 2 * inputs + 2 * outputs + 2 * states)
    assert KIND.num_bytes(problem, "backward_weight", 2) == 2 * (2 * weights + inputs + 2 * outputs + states)


def test_an_lstm_has_two_states() -> None:
    lstm, gru = parse_problem("rnn:lstm:8x3x5"), parse_problem("rnn:gru:8x3x5")
    gate_bytes = 4 * 8 * (8 + 8 + 2)
    assert KIND.num_bytes(lstm, "forward", 4) - KIND.num_bytes(gru, "forward", 4) == gate_bytes + 4 * 2 * 3 * 8


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("cell", ["relu", "tanh", "lstm", "gru"])
def test_flop_are_those_that_pytorch_counts(cell: str, direction: str) -> None:
    problem = parse_problem(f"rnn:{cell}:8x3x5x6")
    with without_onednn():
        prepared = KIND.prepare(problem, direction, "fp32", CPU)
        inputs = prepared.inputs()
        with FlopCounterMode(display=False) as counter:
            prepared.call(*inputs)
    assert counter.get_total_flops() == KIND.flop(problem, direction)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_part_is_compared_where_all_would_take_long(monkeypatch: pytest.MonkeyPatch, direction: str) -> None:
    monkeypatch.setattr(rnn, "_COMPARED_SEQUENCES", 2)
    monkeypatch.setattr(rnn, "_FORWARD_WEIGHTS", 4 * 8 * 16 * 3)  # of three steps
    monkeypatch.setattr(rnn, "_CHUNK_ELEMENTS", 5 * 32 * 2)  # of two sequences
    monkeypatch.setattr(rnn, "_COLUMNS", slice(3))
    prepared = KIND.prepare(parse_problem("rnn:lstm:8x5x5"), direction, "fp32", CPU)
    inputs = prepared.inputs()
    num_compared = {"forward": 3 * 2 * 8, "backward_input": 5 * 2 * 8 + 2 * 2 * 8,
                    "backward_weight": 4 * 8 * (3 + 3 + 2)}
    assert prepared.reference(*inputs).numel() == num_compared[direction]
    assert result_error(prepared, inputs) < prepared.tolerance


def test_a_wrong_order_of_gates_is_found() -> None:
    prepared = KIND.prepare(parse_problem("rnn:lstm:8x2x3"), "forward", "fp32", CPU)

    def mixed_up(*tensors: torch.Tensor) -> torch.Tensor:
        *others, by_input, by_state, first_bias, second_bias = tensors
        result: torch.Tensor = prepared.call(*others, by_input.roll(8, 0), by_state, first_bias, second_bias)
        return result

    wrong = replace(prepared, call=mixed_up)
    assert result_error(wrong, wrong.inputs()) > 100 * prepared.tolerance


@pytest.mark.parametrize("direction", ["backward_input", "backward_weight"])
def test_a_sum_that_rounding_takes_to_zero_is_no_error(direction: str) -> None:
    prepared = KIND.prepare(parse_problem("rnn:relu:1x1x1"), direction, "fp32", CPU)
    weights = [torch.full((1, 1), 1e-9), torch.zeros(1, 1), torch.ones(1), -torch.ones(1)]
    tensors = [torch.ones(1, 1, 1), torch.zeros(1, 1, 1), *weights]
    for tensor in tensors:
        tensor.requires_grad_(tensor.dim() == (3 if direction == "backward_input" else 2))
    inputs = with_graph(lambda *them: rnn._run("relu", *them, train=True), tensors, torch.Generator().manual_seed(0))
    assert inputs[0].item() == 0 < 1e-9 * 1.0 + 1 - 1  # above 0 in float64
    assert not prepared.reference(*inputs).any()
    inputs[0] = torch.full((1, 1, 1), 1e-9)  # as a layer gives it that sums otherwise
    assert prepared.reference(*inputs).any()


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
    prepared = KIND.prepare(problem, direction, "fp32", torch.device(device))
    assert (prepared.excluded is reserve_copy) == excluded
