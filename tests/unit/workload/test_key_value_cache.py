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


@pytest.mark.parametrize(("kind_of_cache", "num_bytes"), [
    ("static", lambda num: 4 * CAPACITY), ("growing", lambda num: 4 * num),
    ("int8", lambda num: CAPACITY * (1 + 4 / WIDTH))])
def test_its_memory(kind_of_cache: str, num_bytes: Callable[[int], float]) -> None:
    cache = KINDS[kind_of_cache](CAPACITY)
    read(cache, words(5, 0))
    read(cache, words(1, 1))
    held = sum(tensor.untyped_storage().nbytes() for tensor in cache.tensors())
    assert held == 2 * NUM_LAYERS * BATCH * HEADS * WIDTH * num_bytes(6)
