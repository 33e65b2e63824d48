"""The FLOP pass: counted, forward and backward, by layer; published figures are checked with the workloads."""

from collections import defaultdict
from pathlib import Path

import pytest
import torch
from support.small import WIDTH, small_case

from charact.datasets._common.request import DataRequest
from charact.execution.case import Case
from charact.execution.loop import Loop
from charact.measure.passes.flops import flop_pass
from charact.measure.passes.operators import attribute_flop, operator_pass
from charact.workload.registry import find_workload

BATCH, FEATURES, CLASSES = 64, 512, 10
FIRST, SECOND = 2 * BATCH * FEATURES * WIDTH, 2 * BATCH * WIDTH * CLASSES


def images(size: int, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(batch_size, 3, size, size), torch.zeros(batch_size, dtype=torch.int64)


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
