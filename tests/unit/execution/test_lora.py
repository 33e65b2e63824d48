"""Low-rank adapters: what they train, what they leave, and what the iteration holds in memory."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from charact.core.errors import UserError
from charact.datasets._common.request import DataRequest, Synthetic
from charact.execution.case import Case, cases_of
from charact.execution.loop import Loop
from charact.execution.lora import AdaptedLinear, num_trainable
from charact.measure.memory_estimate.estimator import Estimator
from charact.measure.memory_estimate.target_devices import this_device
from charact.measure.passes.memory_pass import memory_pass
from charact.workload.registry import find_workload

CPU = torch.device("cpu")
RANK = 4


def case_of(name: str, variant: str | None = None, mode: str = "train", rank: int = RANK, **options: Any) -> Case:
    workload = find_workload(name).prepare(variant)
    of_images = workload.input_kind == "image"
    data = DataRequest(synthetic=Synthetic(num_words=None if of_images else 200))
    return Case(workload, 32 if of_images else 16, 2, mode, "fp32", CPU, data, lora_rank=rank, **options)


def closed_form(rank: int, num_layers: int, *shapes: tuple[int, int]) -> int:
    return num_layers * sum(rank * (inputs + outputs) for inputs, outputs in shapes)


@pytest.mark.parametrize(("name", "variant", "num_layers", "query", "value"), [
    ("llama", "tiny", 4, (256, 256), (256, 64)),
    ("moe", "tiny", 4, (256, 256), (256, 64)),
    ("bert", "tiny", 2, (128, 128), (128, 128)),
    ("transformer_lm", "small", 4, (256, 256), (256, 256)),
    ("vit", "tiny", 12, (192, 192), (192, 192)),
])
@pytest.mark.parametrize("rank", [1, 8])
def test_trained_are_the_adapters_of_query_and_value(name: str, variant: str, num_layers: int, query: tuple[int, int],
                                                     value: tuple[int, int], rank: int) -> None:
    case = case_of(name, variant, rank=rank)
    dataset = case.dataset()
    with torch.device("meta"):
        model = case.model(case.workload, dataset)
        base = replace(case, lora_rank=0).model(case.workload, dataset)
    expected = closed_form(rank, num_layers, query, value)
    assert num_trainable(model) == expected
    assert sum(each.numel() for each in model.parameters()) == expected + num_trainable(base)
    assert sum(isinstance(module, AdaptedLinear) for module in model.modules()) == 2 * num_layers


def test_the_first_forward_is_that_of_the_model_itself() -> None:
    with_adapters, without = Loop(case_of("llama")), Loop(case_of("llama", rank=0))
    batch = without.next_batch()
    base = without.workload.forward(without.model, batch)
    assert torch.equal(with_adapters.workload.forward(with_adapters.model, batch), base)
    for module in with_adapters.model.modules():
        if isinstance(module, AdaptedLinear):
            assert module.a.abs().sum() > 0
            torch.nn.init.ones_(module.b)
    assert not torch.allclose(with_adapters.workload.forward(with_adapters.model, batch), base, atol=1e-3)


def test_products_of_the_forward_are_those_of_the_model_and_of_the_adapters() -> None:
    counts = []
    for rank in (0, RANK):
        loop = Loop(case_of("llama", rank=rank))
        with FlopCounterMode(display=False) as counter:
            loop.workload.forward(loop.model, loop.next_batch())
        counts.append(counter.get_total_flops())
    num_tokens = 2 * 16
    assert counts[1] - counts[0] == 2 * num_tokens * closed_form(RANK, 4, (256, 256), (256, 64))


def test_an_update_changes_the_adapters_alone() -> None:
    loop = Loop(case_of("llama"))
    before = {name: parameter.detach().clone() for name, parameter in loop.model.named_parameters()}
    for _ in range(2):
        loop.iteration(lambda _: nullcontext())
    changed = {name for name, parameter in loop.model.named_parameters() if not torch.equal(parameter, before[name])}
    assert changed == {name for name in before if name.endswith((".a", ".b"))}


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_memory_holds_gradients_and_optimizer_state_of_the_adapters(name: str) -> None:
    case = case_of(name)
    loop = Loop(case)
    for _ in range(2):
        loop.iteration(lambda _: nullcontext())
    rows, facts = memory_pass(loop)
    largest: dict[str, float] = {}
    for row in rows:
        largest[row["category"]] = max(row["bytes"], largest.get(row["category"], 0))
    adapters = 4 * num_trainable(loop.model)
    num_steps = sum(parameter.requires_grad for parameter in loop.model.parameters())
    assert largest["gradients"] == adapters
    assert largest["optimizer_state"] == 2 * adapters + 4 * num_steps  # of Adam, and its numbers of steps
    assert largest["weights"] == 4 * sum(parameter.numel() for parameter in loop.model.parameters())
    estimate = Estimator(this_device(CPU)).estimate(case)
    assert facts.peak_bytes is not None
    assert estimate.low_bytes <= facts.peak_bytes <= estimate.high_bytes
    predicted = {row["category"]: row["bytes"] for row in estimate.rows if row["kind"] == "peak"}
    assert predicted["optimizer_state"] == largest["optimizer_state"]


@pytest.mark.parametrize(("name", "rank", "reason"), [
    ("llama", 65, "--lora 65 is more than the width 64 of an adapted layer of llama: give at most 64"),
    ("resnet18", 4, "resnet18 has none: leave --lora out"),
    ("seq2seq", 4, "seq2seq has none"),
    ("mlp", 4, "mlp has none"),
])
def test_models_that_cannot_have_them(name: str, rank: int, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        case_of(name, rank=rank).check()


def test_ranks_are_cases_of_training() -> None:
    workload = find_workload("llama").prepare(None)
    cases = cases_of(workload, [16], [2], ["train", "infer"], ["fp32"], lora_ranks=[4, 16], device=CPU,
                     data=DataRequest())
    assert [case.id for case in cases] == ["llama-16-b2-train.lora4-fp32-cpu", "llama-16-b2-train.lora16-fp32-cpu",
                                           "llama-16-b2-infer-fp32-cpu"]
    case_of("llama", rank=64).check()
