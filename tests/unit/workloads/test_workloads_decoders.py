"""Decoders: parameters and FLOP against closed forms, rotary positions, and logits with a cache of keys and values."""

from typing import Any

import pytest
import torch
from support.published import build
from torch._subclasses.fake_tensor import FakeTensorMode

from charact.core.errors import UserError
from charact.datasets._common.request import DataRequest
from charact.execution.case import cases_of
from charact.measure.passes.flops import work_of
from charact.workload.key_value_cache import KINDS, GrowingCache
from charact.workload.registry import find_workload
from charact.workloads._attention import attend
from charact.workloads._decoder import rotate, rotations_at

SIZES = {
    # layers, width, heads, heads of keys and values, inner width, words
    ("transformer_lm", "small"): (4, 256, 4, 4, 1024, 33_278),
    ("transformer_lm", "gpt2"): (12, 768, 12, 12, 3072, 50_257),
    ("llama", "tiny"): (4, 256, 8, 2, 688, 4096),
    ("llama", "3.2-1b"): (16, 2048, 32, 8, 8192, 128_256),
    ("llama", "3.1-8b"): (32, 4096, 32, 8, 14_336, 128_256),
    ("moe", "tiny"): (4, 256, 8, 2, 344, 4096),
    ("moe", "8x7b"): (32, 4096, 32, 8, 14_336, 32_000),
    ("mistral", "tiny"): (4, 256, 8, 2, 688, 4096),
    ("mistral", "7b"): (32, 4096, 32, 8, 14_336, 32_000),
}
WINDOWS = {("mistral", "tiny"): 16, ("mistral", "7b"): 4096}
PUBLISHED_PARAMETERS = {("llama", "3.2-1b"): 1_235_814_400, ("llama", "3.1-8b"): 8_030_261_248,
                        ("moe", "8x7b"): 46_702_792_704, ("mistral", "7b"): 7_241_732_096}
SMALL = [("transformer_lm", "small"), ("llama", "tiny"), ("moe", "tiny"), ("mistral", "tiny")]
NUM_EXPERTS, NUM_CHOSEN = 8, 2


def flop_by_hand(name: str, variant: str, num_words: int, num_keys: int, num_logits: int) -> int:
    """FLOP of a forward pass of one sequence: `num_words` new words that attend to `num_keys` positions each."""
    layers, width, heads, kv_heads, inner, vocabulary = SIZES[name, variant]
    kv_width = kv_heads * (width // heads)
    attention_matrices = 2 * width * width + 2 * width * kv_width
    mlp_matrices = 2 * width * inner if name == "transformer_lm" else 3 * width * inner
    if name == "moe":
        mlp_matrices = NUM_CHOSEN * mlp_matrices + width * NUM_EXPERTS
    scores_and_sums = 2 * 2 * num_keys * width
    per_word = layers * (2 * (attention_matrices + mlp_matrices) + scores_and_sums)
    return num_words * per_word + num_logits * 2 * width * vocabulary


def small_model(name: str, variant: str) -> Any:
    torch.manual_seed(0)
    workload = find_workload(name).prepare(variant)
    return workload.model(workload.dataset(8, DataRequest())).eval()


@pytest.mark.parametrize(("case", "published"), PUBLISHED_PARAMETERS.items())
def test_parameters_are_the_published_ones(case: tuple[str, str], published: int) -> None:
    _, model = build(*case)
    assert sum(parameter.numel() for parameter in model.parameters()) == published


def test_parameters_of_the_small_llama_are_those_counted_by_hand() -> None:
    _, model = build("llama", "tiny")
    layer = 2 * 256 * 256 + 2 * 256 * 64 + 3 * 256 * 688 + 2 * 256
    assert sum(parameter.numel() for parameter in model.parameters()) == 2 * 4096 * 256 + 4 * layer + 256


@pytest.mark.parametrize(("name", "variant"), SIZES)
@pytest.mark.parametrize("num_words", [1, 128, 1000])
def test_flop_are_those_counted_by_hand(name: str, variant: str, num_words: int) -> None:
    with FakeTensorMode(), torch.inference_mode():
        workload = find_workload(name).prepare(variant)
        model = workload.model(workload.dataset(8, DataRequest())).eval()
        words = torch.zeros(1, num_words, dtype=torch.int64)
        prompt, _, uncounted = work_of(lambda: model(words))
        assert uncounted == []
        assert prompt == pytest.approx(flop_by_hand(name, variant, num_words, num_words, num_words), rel=1e-6)
        window = WINDOWS.get((name, variant), num_words + 1)
        cache = GrowingCache(window=window)
        with_cache, _, _ = work_of(lambda: model(words, cache))
        assert with_cache == pytest.approx(flop_by_hand(name, variant, num_words, num_words, 1), rel=1e-6)
        next_word, _, _ = work_of(lambda: model(words[:, :1], cache))
        assert next_word == pytest.approx(flop_by_hand(name, variant, 1, min(num_words + 1, window), 1), rel=1e-6)


@pytest.mark.parametrize(("name", "variant"), SMALL)
@pytest.mark.parametrize("parts", [[1] * 9, [5, 1, 1, 1, 1], [4, 5]])
def test_logits_with_a_cache_are_those_without(name: str, variant: str, parts: list[int]) -> None:
    model = small_model(name, variant)
    words = torch.randint(0, 1000, (2, 9))
    cache = GrowingCache()
    with torch.inference_mode():
        whole = model(words)
        ends = torch.tensor(parts).cumsum(0)
        steps = [model(part, cache) for part in words.split(parts, dim=1)]
    assert cache.length == 9
    assert [tuple(step.shape) for step in steps] == [(2, 1, whole.shape[-1])] * len(parts)
    assert torch.allclose(torch.cat(steps, dim=1), whole[:, ends - 1], atol=1e-4)


@pytest.mark.parametrize("kind", ["static", "growing"])
@pytest.mark.parametrize("parts", [[1] * 40, [5, *[1] * 35], [30, *[1] * 10]])
def test_logits_across_the_edge_of_a_window(kind: str, parts: list[int]) -> None:
    model = small_model("mistral", "tiny")
    words = torch.randint(0, 1000, (2, 40))
    cache = KINDS[kind](40, 16)
    with torch.inference_mode():
        whole = model(words)
        steps = [model(part, cache) for part in words.split(parts, dim=1)]
    assert torch.allclose(torch.cat(steps, dim=1), whole[:, torch.tensor(parts).cumsum(0) - 1], atol=1e-4)


def test_a_word_sees_its_window_only() -> None:
    num_layers, window = 4, 16
    model = small_model("mistral", "tiny")
    words = torch.randint(0, 1000, (2, 70))
    changed = words.clone()
    changed[:, 0] += 1
    with torch.inference_mode():
        one, other = model(words), model(changed)
    last_seen = num_layers * (window - 1)  # each layer passes the first word on by the window
    assert not torch.allclose(one[:, :window], other[:, :window], atol=1e-2)
    assert torch.allclose(one[:, last_seen + 1:], other[:, last_seen + 1:], atol=1e-5)


def test_attention_in_a_window_is_that_to_the_last_keys_of_each_query() -> None:
    query, keys, values = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 7, 8), torch.randn(1, 2, 7, 8)
    alone = [attend(query[:, :, [place]], keys[:, :, place + 1:place + 5], values[:, :, place + 1:place + 5])
             for place in range(3)]
    assert torch.allclose(attend(query, keys, values, causal=True, window=4), torch.cat(alone, 2), atol=1e-6)


@pytest.mark.parametrize(("name", "variant"), SMALL)
def test_no_word_sees_later_ones(name: str, variant: str) -> None:
    model = small_model(name, variant)
    words = torch.randint(0, 1000, (2, 8))
    changed = words.clone()
    changed[:, 5:] += 1
    with torch.inference_mode():
        one, other = model(words), model(changed)
    assert torch.allclose(one[:, :5], other[:, :5], atol=1e-5)
    assert not torch.allclose(one[:, 5:], other[:, 5:], atol=1e-2)


def test_rotated_products_depend_on_the_distance_of_positions_only() -> None:
    query, keys = torch.randn(2, 1, 1, 1, 64, dtype=torch.float64)

    def product(of_query: int, of_key: int) -> float:
        at = [rotations_at(torch.tensor([position]), 64, 500_000.0, torch.float64) for position in (of_query, of_key)]
        return float((rotate(query, at[0]) * rotate(keys, at[1])).sum())

    assert product(7, 4) == pytest.approx(product(1003, 1000), abs=1e-3)
    assert product(7, 4) != pytest.approx(product(7, 5), abs=1e-2)


def test_rotary_frequencies_are_the_papers() -> None:
    cosines, sines = rotations_at(torch.tensor([0, 3]), 8, 10_000.0, torch.float32)
    angles = torch.tensor([3.0, 0.3, 0.03, 0.003])
    assert torch.equal(cosines[0], torch.ones(4))
    assert torch.allclose(cosines[1], angles.cos())
    assert torch.allclose(sines[1], angles.sin())


def test_late_positions_in_bf16_have_the_angles_of_fp32() -> None:
    exact = rotations_at(torch.tensor([100_001]), 128, 500_000.0, torch.float32)
    rounded = rotations_at(torch.tensor([100_001]), 128, 500_000.0, torch.bfloat16)
    assert rounded[0].dtype == torch.bfloat16
    assert torch.allclose(rounded[0].float(), exact[0], atol=4e-3)


def test_each_key_head_serves_as_many_heads_in_a_row() -> None:
    query, keys, values = torch.randn(1, 6, 3, 8), torch.randn(1, 2, 3, 8), torch.randn(1, 2, 3, 8)
    repeated = attend(query, keys.repeat_interleave(3, dim=1), values.repeat_interleave(3, dim=1), causal=True)
    assert torch.allclose(attend(query, keys, values, causal=True), repeated, atol=1e-6)


def test_an_input_beyond_the_context_is_refused() -> None:
    (case,) = cases_of(find_workload("llama").prepare(), [131_072], [1], ["prefill"], ["fp32"], [1],
                       device=torch.device("cpu"), data=DataRequest())
    with pytest.raises(UserError, match=r"131072 with output size 1 is too large for llama \(takes at most 131072\)"):
        case.check()
