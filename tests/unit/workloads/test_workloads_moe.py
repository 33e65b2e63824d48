"""The mixture of experts: products of groups of rows, routing, and the words that experts get."""

import contextlib
from typing import Any

import pytest
import torch
from support.published import make_case
from torch import Tensor
from torch.nn import functional

from charact.execution.loop import Loop
from charact.measure.passes.flops import work_of
from charact.workloads._grouped_gemm import grouped_gemm
from charact.workloads.moe import SIZES, Experts

ENDS = [3, 3, 10, 12]
"""Ends of four groups of rows, of which the second is empty."""


def grouped_by_hand(x: Tensor, weights: Tensor) -> Tensor:
    return torch.cat([x[first:end] @ weights[group].T for group, (first, end) in enumerate(
        zip([0, *ENDS], ENDS, strict=False))])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_row_is_multiplied_by_the_matrix_of_its_group(dtype: torch.dtype) -> None:
    x, weights = torch.randn(12, 16, dtype=dtype), torch.randn(4, 8, 16, dtype=dtype)
    outputs = grouped_gemm(x, weights, torch.tensor(ENDS, dtype=torch.int32))
    assert torch.allclose(outputs, grouped_by_hand(x, weights), atol=1e-5 if dtype == torch.float32 else 0.1)


def test_gradients_of_grouped_products() -> None:
    x = torch.randn(12, 5, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(4, 3, 5, dtype=torch.float64, requires_grad=True)
    ends = torch.tensor(ENDS, dtype=torch.int32)
    factors = torch.randn(12, 3, dtype=torch.float64)
    found = torch.autograd.grad((grouped_gemm(x, weights, ends) * factors).sum(), (x, weights))
    expected = torch.autograd.grad((grouped_by_hand(x, weights) * factors).sum(), (x, weights))
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other)


def test_flop_of_grouped_products_and_their_gradients() -> None:
    x, weights = torch.randn(12, 16, requires_grad=True), torch.randn(4, 8, 16, requires_grad=True)
    ends = torch.tensor(ENDS, dtype=torch.int32)
    forward, _, uncounted = work_of(lambda: grouped_gemm(x, weights, ends))
    outputs = grouped_gemm(x, weights, ends)
    backward, _, _ = work_of(lambda: outputs.sum().backward())
    assert (forward, backward, uncounted) == (2 * 12 * 8 * 16, 2 * 2 * 12 * 8 * 16, [])


def mixed_by_hand(experts: Experts, words: Tensor) -> Tensor:
    """Apply both chosen experts to each word alone."""
    outputs = []
    for word, scores in zip(words, experts.router(words), strict=True):
        best, chosen = scores.topk(2)
        hidden = [functional.silu(experts.gate[expert] @ word) * (experts.up[expert] @ word) for expert in chosen]
        outputs.append(sum(share * (experts.down[expert] @ each)
                           for share, expert, each in zip(best.softmax(0), chosen, hidden, strict=True)))
    return torch.stack(outputs)  # type: ignore[arg-type]


@pytest.fixture
def experts() -> Experts:
    torch.manual_seed(0)
    return Experts(SIZES["tiny"])


def test_a_word_gets_the_weighted_outputs_of_its_two_experts(experts: Experts) -> None:
    words = torch.randn(20, 256)
    with torch.no_grad():
        mixed = experts(words.reshape(2, 10, 256)).flatten(0, 1)
        assert torch.allclose(mixed, mixed_by_hand(experts, words), atol=1e-5)


def test_gradients_are_those_of_single_words(experts: Experts) -> None:
    words = torch.randn(6, 256, requires_grad=True)
    inputs = (words, *experts.parameters())
    found = torch.autograd.grad(experts(words).square().sum(), inputs)
    expected = torch.autograd.grad(mixed_by_hand(experts, words).square().sum(), inputs)
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, atol=1e-4 * float(other.abs().max()))


def test_the_words_of_experts_are_counted(experts: Experts) -> None:
    with torch.no_grad():
        experts.router.weight.zero_()
        experts.router.weight[3] = 2.0
        experts.router.weight[5] = 1.0
    for _ in range(2):
        experts(torch.ones(4, 256))
    assert experts.num_routed.tolist() == [0, 0, 0, 8, 0, 8, 0, 0]


def test_under_autocast_products_are_in_its_type(experts: Experts) -> None:
    words = torch.randn(6, 256)
    dtypes: list[Any] = []

    def recorded(x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
        dtypes.append((x.dtype, weights.dtype))
        return grouped_gemm(x, weights, ends)

    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), pytest.MonkeyPatch.context() as patch:
        patch.setattr("charact.workloads.moe.grouped_gemm", recorded)
        outputs = experts(words)
    assert outputs.dtype == torch.float32
    assert dtypes == [(torch.bfloat16, torch.bfloat16)] * 3


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_facts_have_the_words_of_all_iterations(mode: str) -> None:
    loop = Loop(make_case("moe", None, mode, batch_size=2, input_size=8))
    for _ in range(3):
        loop.iteration(lambda phase: contextlib.nullcontext())
    facts = loop.workload.facts()
    by_layer = facts["words_of_experts"]
    assert facts["imbalance_of_experts"] == [round(max(words) / (3 * 2 * 8 * 2 / 8), 3) for words in by_layer]
    assert [len(words) for words in by_layer] == [8] * 4
    assert [sum(words) for words in by_layer] == [3 * 2 * 8 * 2] * 4  # iterations, batch, words, experts of a word
