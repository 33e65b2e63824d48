"""Caches of keys and values: what they return, cut and forget, and how much memory they take."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from charact.workload.key_value_cache import KINDS, KeyValueCache

CAPACITY, NUM_LAYERS, BATCH, HEADS, WIDTH = 12, 3, 2, 4, 8


def words(num_words: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Return keys and values of each layer, of which those of one head are much larger."""
    torch.manual_seed(seed)
    scale = torch.tensor([1.0, 1.0, 100.0, 1.0])[None, :, None, None]
    return [(torch.randn(BATCH, HEADS, num_words, WIDTH) * scale, torch.randn(BATCH, HEADS, num_words, WIDTH) * scale)
            for _ in range(NUM_LAYERS)]


def read(cache: KeyValueCache, new: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """Let all layers read new words; return what each layer sees."""
    seen = [cache.extend(layer, *pair) for layer, pair in enumerate(new)]
    cache.advance(new[0][0].shape[2])
    return [(keys.clone(), values.clone()) for keys, values in seen]


def joined(*parts: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    return [(torch.cat([part[layer][0] for part in parts], 2), torch.cat([part[layer][1] for part in parts], 2))
            for layer in range(NUM_LAYERS)]


def assert_equal(kind: str, seen: list[tuple[Tensor, Tensor]], expected: list[tuple[Tensor, Tensor]]) -> None:
    for tensors, wanted in zip(seen, expected, strict=True):
        for tensor, want in zip(tensors, wanted, strict=True):
            error = (tensor - want).abs()
            # 8 bits: half a step of the largest number of a word and head.
            limit = want.abs().amax(3, keepdim=True) * (0.5001 / 127 if kind == "int8" else 0.0)
            assert bool((error <= limit).all())


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_each_layer_sees_all_words_so_far(kind: str) -> None:
    cache = KINDS[kind](CAPACITY)
    prompt, first, second = words(5, 0), words(1, 1), words(1, 2)
    assert_equal(kind, read(cache, prompt), prompt)
    assert_equal(kind, read(cache, first), joined(prompt, first))
    assert_equal(kind, read(cache, second), joined(prompt, first, second))
    assert cache.length == 7


def test_words_after_the_prompt_are_forgotten(kind: str) -> None:
    cache = KINDS[kind](CAPACITY)
    prompt, other = words(5, 0), words(1, 3)
    read(cache, prompt)
    cache.keep()
    for seed in range(1, 4):
        read(cache, words(1, seed))
    cache.cut()
    assert cache.length == 5
    assert_equal(kind, read(cache, other), joined(prompt, other))


def test_skipped_words_have_a_place(kind: str) -> None:
    cache = KINDS[kind](CAPACITY)
    read(cache, words(5, 0))
    cache.keep()
    cache.skip(3)
    ((keys, _), *_) = read(cache, words(1, 4))
    assert (cache.length, keys.shape[2]) == (9, 9)
    assert bool(keys.isfinite().all())


def test_all_is_forgotten(kind: str) -> None:
    cache = KINDS[kind](CAPACITY)
    read(cache, words(5, 0))
    cache.clear()
    prompt = words(2, 5)
    assert_equal(kind, read(cache, prompt), prompt)
    assert cache.length == 2


def assert_same_words(kind: str, seen: list[tuple[Tensor, Tensor]], expected: list[tuple[Tensor, Tensor]]) -> None:
    """Compare without order: each expected word is near one that was seen."""
    for tensors, wanted in zip(seen, expected, strict=True):
        for tensor, want in zip(tensors, wanted, strict=True):
            assert tensor.shape == want.shape
            errors = (tensor[:, :, :, None] - want[:, :, None]).abs().amax(4).amin(2)
            limit = want.abs().amax(3) * (0.5001 / 127 if kind == "int8" else 0.0)
            assert bool((errors <= limit).all())


def last(parts: list[tuple[Tensor, Tensor]], num_words: int) -> list[tuple[Tensor, Tensor]]:
    return [(keys[:, :, -num_words:], values[:, :, -num_words:]) for keys, values in parts]


@pytest.mark.parametrize("num_prompt_words", [2, 3, 4, 6])
def test_a_window_has_the_last_words(kind: str, num_prompt_words: int) -> None:
    window = 4
    cache = KINDS[kind](CAPACITY, window)
    prompt, outputs = words(num_prompt_words, 0), [words(1, seed) for seed in range(1, CAPACITY - num_prompt_words)]
    for _ in range(2):  # the second time with another request before
        cache.clear()
        assert_equal("int8", read(cache, prompt), prompt)
        cache.keep()
        for begins_at in (0, 0, 3):  # from the prompts, again from them, and after some words
            cache.go_to(0)
            so_far = prompt
            for output in outputs:
                so_far = joined(so_far, output)
                assert_same_words(kind, read(cache, output), last(so_far, window))
            cache.go_to(begins_at)
            assert cache.length == num_prompt_words + begins_at
            ((keys, _), *_) = read(cache, words(1, 99))
            assert keys.shape[2] == min(cache.length, window)
            assert bool(keys.isfinite().all())


@pytest.mark.parametrize(("kind_of_cache", "num_bytes"), [
    ("static", lambda num: 4 * CAPACITY), ("growing", lambda num: 4 * num),
    ("int8", lambda num: CAPACITY * (1 + 4 / WIDTH))])
def test_its_memory(kind_of_cache: str, num_bytes: Callable[[int], float]) -> None:
    cache = KINDS[kind_of_cache](CAPACITY)
    read(cache, words(5, 0))
    read(cache, words(1, 1))
    held = sum(tensor.untyped_storage().nbytes() for tensor in cache.tensors())
    assert held == 2 * NUM_LAYERS * BATCH * HEADS * WIDTH * num_bytes(6)


@pytest.mark.parametrize("num_prompt_words", [2, 9])
@pytest.mark.parametrize(("kind_of_cache", "bytes_of_a_number"), [
    ("static", 4), ("growing", 4), ("int8", 1 + 4 / WIDTH)])
def test_memory_of_a_window(kind_of_cache: str, bytes_of_a_number: float, num_prompt_words: int) -> None:
    window = 4
    cache = KINDS[kind_of_cache](CAPACITY, window)
    read(cache, words(num_prompt_words, 0))
    for seed in (1, 2):
        read(cache, words(1, seed))
    held = sum(tensor.untyped_storage().nbytes() for tensor in cache.tensors())
    assert held == 2 * NUM_LAYERS * BATCH * HEADS * WIDTH * window * bytes_of_a_number
