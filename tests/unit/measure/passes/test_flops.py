"""FLOP against counts by hand, published figures, and the same work in operators that PyTorch counts."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from support.small import WIDTH, small_case
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from charact.datasets._common.request import DataRequest
from charact.execution.case import Case
from charact.execution.loop import Loop
from charact.measure.passes.flops import FORMULAS, _Counter, flop_pass
from charact.measure.passes.operators import attribute_flop, operator_pass
from charact.workload.registry import find_workload

BATCH, FEATURES, CLASSES = 64, 512, 10
FIRST, SECOND = 2 * BATCH * FEATURES * WIDTH, 2 * BATCH * WIDTH * CLASSES


def images(size: int, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(batch_size, 3, size, size), torch.zeros(batch_size, dtype=torch.int64)


def test_tables_with_sparse_gradients_count_the_rows_that_are_used() -> None:
    batch_size, size, width = 8, 3, 16
    case = Case(find_workload("dlrm").prepare(), size, batch_size, "train", "fp32", torch.device("cpu"), DataRequest())
    rows, _ = flop_pass(case, (torch.empty(batch_size, 13), torch.zeros(batch_size, 26, size, dtype=torch.int64),
                               torch.zeros(batch_size)))
    lookups = batch_size * size
    of_table = {(row["phase"], row["operator"]): row["bytes"] for row in rows if row["layer"] == "tables.2"}
    used = 4 * width * lookups
    sums, places, starts = 4 * width * batch_size, 8 * lookups, 8 * batch_size
    assert used + sums + places + starts <= of_table["forward", "aten::_embedding_bag"] < 2 * used
    assert of_table["backward", "aten::_embedding_bag_backward"] >= used + places + sums
    assert ("backward", "aten::clone") not in of_table
    (update,) = (row["bytes"] for row in rows if row["phase"] == "update" and row["operator"] == "aten::add_")
    networks = sum(each.numel() for name, each in Loop(case).model.named_parameters() if "tables" not in name)
    assert update == 26 * (3 * used + places) + 3 * 4 * networks


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_each_product_is_counted_in_its_phase_and_layer(precision: str) -> None:
    case = small_case("train", precision=precision)
    rows, facts = flop_pass(case, Loop(case).next_batch())
    flop: dict[tuple[str, str | None], float] = defaultdict(float)
    for row in rows:
        flop[row["phase"], row["layer"]] += row["flop"] or 0
    assert {key: value for key, value in flop.items() if value} == {
        ("forward", "0"): FIRST, ("forward", "2"): SECOND,
        ("backward", "0"): FIRST,  # by weight only: nothing needs the input's gradient
        ("backward", "2"): 2 * SECOND,
    }
    assert facts.uncounted == []


def test_a_batch_of_another_device_counts_as_on_the_cpu() -> None:
    """As on a GPU, whose tensors cannot be converted to fake ones of the CPU."""
    case = small_case("train")
    batch = Loop(case).next_batch()
    rows, facts = flop_pass(case, batch)
    assert sum(row["flop"] or 0 for row in rows)
    assert flop_pass(case, tuple(one.to("meta") for one in batch)) == (rows, facts)


def test_bytes_are_those_of_inputs_and_outputs() -> None:
    case = small_case("infer")
    rows, _ = flop_pass(case, Loop(case).next_batch())
    product = next(row for row in rows if row["layer"] == "0")
    assert product["operator"] == "aten::mm"
    assert product["num_calls"] == 1
    assert product["bytes"] == 4 * (BATCH * FEATURES + FEATURES * WIDTH + BATCH * WIDTH)


def test_an_embedding_reads_no_more_of_its_table_than_it_gives() -> None:
    num_words, num_sentences = 12, 2
    case = Case(find_workload("rnn_lm").prepare(), num_words, num_sentences, "infer", "fp32", torch.device("cpu"),
                DataRequest())  # fmt: skip
    loop = Loop(case)
    (table,) = (module for module in loop.model.modules() if isinstance(module, torch.nn.Embedding))
    rows, _ = flop_pass(case, loop.next_batch())
    (embedding,) = (row for row in rows if row["operator"] == "aten::embedding")
    num_tokens = num_words * num_sentences
    assert embedding["bytes"] == num_tokens * (8 + 2 * 4 * table.embedding_dim)


@pytest.mark.slow
def test_a_weight_that_stands_for_every_step_is_read_once() -> None:
    bytes_of = {}
    for mode in ("train", "infer"):  # inference takes the layer apart into products with an expanded weight
        case = Case(find_workload("aoa_reader").prepare(), 16, 2, mode, "fp32", torch.device("cpu"), DataRequest())
        rows, _ = flop_pass(case, Loop(case).next_batch())
        bytes_of[mode] = sum(row["bytes"] for row in rows
                             if row["operator_type"] == "GEMM" and row["phase"] == "forward")
    assert bytes_of["infer"] == pytest.approx(bytes_of["train"], rel=0.01)


@pytest.mark.slow
def test_what_only_takes_memory_or_views_it_moves_nothing() -> None:
    case = Case(find_workload("aoa_reader").prepare(), 16, 2, "train", "fp32", torch.device("cpu"), DataRequest())
    rows, _ = flop_pass(case, Loop(case).next_batch())
    assert not [row for row in rows if row["operator_type"] == "view"]
    taken = [row["bytes"] for row in rows if row["operator"] in ("aten::empty", "aten::empty_like")]
    assert taken
    assert not any(taken)


def test_the_update_is_one_that_finds_its_state() -> None:
    case = small_case("train")  # SGD with momentum, whose first update copies the gradients
    rows, _ = flop_pass(case, Loop(case).next_batch())
    update = {row["operator"]: row["num_calls"] for row in rows if row["phase"] == "update"}
    assert update == {"aten::mul_": 2, "aten::add_": 4}


@pytest.mark.slow_variants
@pytest.mark.parametrize(("name", "forward_gmac", "backward_to_forward"), [
    ("resnet50", 4.089, 1.971), ("vgg16", 15.470, 1.994), ("resnet18", 1.814, 1.935)])
def test_published_macs_and_a_backward_that_is_counted_not_assumed(
    name: str, forward_gmac: float, backward_to_forward: float,
) -> None:
    batch_size = 2
    case = Case(find_workload(name).prepare(), 224, batch_size, "train", "fp32", torch.device("cpu"), DataRequest())
    rows, _ = flop_pass(case, images(224, batch_size))
    flop: dict[str, float] = defaultdict(float)
    for row in rows:
        flop[row["phase"]] += row["flop"] or 0
    assert flop["forward"] == pytest.approx(2e9 * forward_gmac * batch_size, rel=0.005)
    assert flop["backward"] / flop["forward"] == pytest.approx(backward_to_forward, abs=0.001)


def test_all_flop_find_the_operator_that_did_them(tmp_path: Path) -> None:
    workload = find_workload("resnet18").prepare("cifar")
    case = Case(workload, 32, 2, "train", "fp32", torch.device("cpu"), DataRequest())
    loop = Loop(case)
    operators = operator_pass(loop, tmp_path / "trace.json", num_iterations=1).operator_rows
    counted, _ = flop_pass(case, loop.next_batch())
    attribute_flop(operators, counted)
    assert sum(row["flop"] or 0 for row in operators) == pytest.approx(sum(row["flop"] or 0 for row in counted))


def count(model: nn.Module, *inputs: Tensor) -> tuple[float, float, set[str]]:
    """FLOP of a module forward and backward as the FLOP pass counts them, and what it could not count."""
    counter = _Counter(model)
    with counter:
        with counter.mark("forward"):
            outputs: Any = model(*inputs)
            loss = (outputs[0] if isinstance(outputs, tuple) else outputs).sum()
        with counter.mark("backward"):
            loss.backward()
    forward, backward = (sum(row["flop"] or 0 for row in counter.work.rows() if row["phase"] == phase)
                         for phase in ("forward", "backward"))
    return forward, backward, counter.work.uncounted


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
    aten: Any = torch.ops.aten
    forward, backward = FORMULAS[aten._cudnn_rnn], FORMULAS[aten._cudnn_rnn_backward]
    assert forward(torch.empty(6, 3, 5), weights, *rest, out_val=None) == by_hand
    packed = torch.empty(18, 5)
    assert backward(packed, weights, *rest, [True] * 4, out_val=None) == 2 * by_hand
    assert backward(packed, weights, *rest, [True, True, True, False], out_val=None) == by_hand


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
