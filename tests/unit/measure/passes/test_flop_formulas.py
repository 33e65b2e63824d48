"""FLOP formulas against counts by hand, and against the same work spelled out in operators that PyTorch counts."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from charact.measure.passes.flop_formulas import FORMULAS, cudnn_rnn_backward_flop, cudnn_rnn_flop
from charact.measure.passes.flops import _Counter


def count(model: nn.Module, *inputs: Tensor) -> tuple[float, float, set[str]]:
    """FLOP of a module forward and backward as the FLOP pass counts them, and what it could not count."""
    counter = _Counter(model)
    with counter:
        with counter.mark("forward"):
            outputs: Any = model(*inputs)
            loss = (outputs[0] if isinstance(outputs, tuple) else outputs).sum()
        with counter.mark("backward"):
            loss.backward()
    forward, backward = (sum(row["flop"] or 0 for row in counter.rows() if row["phase"] == phase)
                         for phase in ("forward", "backward"))
    return forward, backward, counter.uncounted


class Attention(nn.Module):
    """Attention alone."""

    def __init__(self, *, is_causal: bool = False) -> None:
        super().__init__()
        self.is_causal = is_causal

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(query, key, value, is_causal=self.is_causal)


def test_an_lstm_has_its_hand_counted_flop() -> None:
    # 30 steps of 10 sequences; 4 gates; 2 layers that multiply by (250 + 300) and (300 + 300) rows of 300 columns.
    by_hand = 2 * (30 * 10) * 4 * 300 * ((250 + 300) + (300 + 300))
    assert by_hand == 828_000_000
    with FakeTensorMode():
        inputs = torch.empty(30, 10, 250, requires_grad=True)
        assert count(nn.LSTM(250, 300, num_layers=2), inputs) == (by_hand, 2 * by_hand, set())


def test_wider_lstm_is_counted_to_the_flop() -> None:
    with FakeTensorMode():
        forward, backward, _ = count(nn.LSTM(440, 440, num_layers=2), torch.empty(35, 15, 440, requires_grad=True))
    # 35 · 15 steps, 2 layers of 4 gates of 440, each by 440 inputs and 440 states: 3.25 GFLOP.
    assert forward == 2 * 525 * 2 * 4 * 440 * 880 == 3_252_480_000
    assert backward == 6_504_960_000


@pytest.mark.parametrize("bidirectional", [False, True])
def test_an_lstm_layer_counts_as_its_steps_spelled_out(bidirectional: bool) -> None:
    inputs = torch.randn(6, 3, 5, requires_grad=True)
    cell = nn.LSTMCell(5, 7)

    def spelled_out() -> None:
        state = (torch.randn(3, 7, requires_grad=True), torch.randn(3, 7, requires_grad=True))
        for step in inputs:
            state = cell(step, state)
        (state[0].sum() + state[1].sum()).backward()

    with FlopCounterMode(display=False) as counter:
        spelled_out()
    forward, backward, uncounted = count(nn.LSTM(5, 7, bidirectional=bidirectional), inputs)
    directions = 2 if bidirectional else 1
    assert forward + backward == directions * counter.get_total_flops()
    assert uncounted == set()


@pytest.mark.parametrize(("layer", "gates"), [(nn.GRU, 3), (nn.RNN, 1)])
def test_other_cells_are_counted_by_their_products(layer: type[nn.RNNBase], gates: int) -> None:
    with FakeTensorMode():
        forward, backward, uncounted = count(layer(5, 7), torch.empty(6, 3, 5, requires_grad=True))
    by_hand = 2 * 6 * 3 * gates * 7 * (5 + 7)
    first_step = 2 * 3 * gates * 7 * 7  # the zero state before it needs no gradient
    assert (forward, backward, uncounted) == (by_hand, 2 * by_hand - first_step, set())


def test_cudnns_layers_count_their_matrices() -> None:
    lstm = nn.LSTM(5, 7, num_layers=2, bidirectional=True)
    weights = [parameter.detach() for parameter in lstm.parameters()]
    rest = [0, None, None, None, [True, True, True]]
    # Both directions: gates (4 · 7) by inputs and states, (5 + 7) in layer 1 and (14 + 7) in layer 2.
    by_hand = 2 * (6 * 3) * 2 * 28 * ((5 + 7) + (14 + 7))
    assert cudnn_rnn_flop(torch.empty(6, 3, 5), weights, *rest, out_val=None) == by_hand
    packed = torch.empty(18, 5)
    assert cudnn_rnn_backward_flop(packed, weights, *rest, [True] * 4, out_val=None) == 2 * by_hand
    assert cudnn_rnn_backward_flop(packed, weights, *rest, [True, True, True, False], out_val=None) == by_hand


@pytest.mark.parametrize("is_causal", [False, True])
def test_cpu_attention_has_its_hand_counted_flop(is_causal: bool) -> None:
    with FakeTensorMode():
        query, key = (torch.empty(2, 4, steps, 8, requires_grad=True) for steps in (6, 10))
        product = 2 * (2 * 4) * 6 * 10 * 8
        forward, backward, uncounted = count(Attention(is_causal=is_causal), query, key, key)
    # Scores and the weighted sum; backward the scores again, then the gradients of value, weights, query and key.
    assert (forward, backward, uncounted) == (2 * product, 5 * product, set())


def test_cpu_attention_counts_as_pytorch_counts_it_on_a_gpu() -> None:
    from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

    aten: Any = torch.ops.aten
    query, key, value = torch.empty(2, 4, 6, 8), torch.empty(2, 4, 10, 8), torch.empty(2, 4, 10, 8)
    shapes = (query.shape, key.shape, value.shape)
    forward = FORMULAS[aten._scaled_dot_product_flash_attention_for_cpu](query, key, value, out_val=None)
    backward = FORMULAS[aten._scaled_dot_product_flash_attention_for_cpu_backward](
        query, query, key, value, query, None, 0.0, False, out_val=None)
    assert forward == sdpa_flop_count(*shapes)
    assert backward == sdpa_backward_flop_count(query.shape, *shapes)


@pytest.mark.parametrize(("groups", "stride"), [(1, 1), (1, 2), (4, 1), (8, 2)])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_convolutions_gradients_cost_what_it_costs(groups: int, stride: int, transposed: bool) -> None:
    layer = nn.ConvTranspose2d if transposed else nn.Conv2d
    with FakeTensorMode():
        model = layer(8, 16, 3, stride=stride, groups=groups)
        inputs = torch.empty(2, 8, 9, 9, requires_grad=True)
        forward, backward, uncounted = count(model, inputs)
        outputs = model(inputs)
    # Every group maps 8/groups channels to 16/groups, at each position that the kernel is laid on.
    positions = 9 * 9 if transposed else outputs.shape[2] * outputs.shape[3]
    by_hand = 2 * 2 * positions * 9 * groups * (8 // groups) * (16 // groups)
    assert (forward, backward, uncounted) == (by_hand, 2 * by_hand, set())


def test_a_first_layers_convolution_has_no_gradient_of_its_inputs() -> None:
    with FakeTensorMode():
        forward, backward, _ = count(nn.Conv2d(3, 16, 3), torch.empty(2, 3, 9, 9))
    assert forward == backward == 2 * 2 * 7 * 7 * 9 * 3 * 16


def test_pytorchs_own_formula_still_counts_groups_too_often() -> None:
    """When this fails, the formula for convolutions here has become needless."""
    model = nn.Conv2d(8, 8, 3, groups=8)
    outputs = model(torch.randn(1, 8, 9, 9))
    with FlopCounterMode(display=False) as counter:
        outputs.sum().backward()
    assert counter.get_total_flops() == 8 * 2 * 7 * 7 * 9 * 8
