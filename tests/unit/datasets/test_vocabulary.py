"""Vocabularies and made-up text: orders, unknown words, and the statistics that were asked for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from charact.datasets._common.vocabulary import Vocabulary, sentence_lengths, zipf_tokens

TEXT = ["a", "b", "b", "c", "a", "b"]


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_words_are_numbered_in_the_order_of_the_text_after_the_special_ones() -> None:
    vocabulary = Vocabulary.from_tokens(TEXT, ("<pad>", "<unk>", "c"), unknown="<unk>")
    assert vocabulary.words == ("<pad>", "<unk>", "c", "a", "b")
    assert [vocabulary[word] for word in vocabulary.words] == [0, 1, 2, 3, 4]
    numbers = vocabulary.encode(["c", "never", "<pad>"])
    assert (numbers.tolist(), numbers.dtype) == ([2, 1, 0], np.int64)
    assert "never" not in vocabulary
    with pytest.raises(KeyError, match="never"):
        Vocabulary.from_tokens(TEXT, ()).encode(["a", "never"])
    with pytest.raises(KeyError, match="<unk>"):
        Vocabulary.from_tokens(TEXT, (), unknown="<unk>")


@given(st.lists(st.text(max_size=3)))
def test_words_survive_the_way_to_numbers_and_back(tokens: list[str]) -> None:
    vocabulary = Vocabulary.from_tokens(tokens, ())
    assert vocabulary.decode(vocabulary.encode(tokens)) == tokens
    assert vocabulary.words == tuple(dict.fromkeys(tokens))


def test_frequencies_follow_zipfs_law() -> None:
    counts = np.bincount(zipf_tokens(generator(), 300_000, 1_000, 1.0), minlength=1_000)
    harmonic = (1 / np.arange(1, 1_001)).sum()
    expected = 300_000 / harmonic / np.arange(1, 1_001)
    assert counts[:20] == pytest.approx(expected[:20], rel=0.05)
    assert counts[-500:].sum() == pytest.approx(expected[-500:].sum(), rel=0.05)


@pytest.mark.parametrize(("exponent", "share_of_the_first"), [(0.0, 0.25), (2.0, 1 / (1 + 1 / 4 + 1 / 9 + 1 / 16))])
def test_the_exponent_is_the_law(exponent: float, share_of_the_first: float) -> None:
    tokens = zipf_tokens(generator(), 100_000, 4, exponent)
    assert (tokens == 0).mean() == pytest.approx(share_of_the_first, abs=0.01)
    assert tokens.dtype == np.int64


@given(st.integers(0, 2**32), st.integers(1, 50), st.floats(0, 5))
def test_tokens_are_in_the_vocabulary_and_depend_on_the_seed_alone(seed: int, words: int, exponent: float) -> None:
    tokens = zipf_tokens(generator(seed), 100, words, exponent)
    assert 0 <= tokens.min() <= tokens.max() < words
    assert np.array_equal(tokens, zipf_tokens(generator(seed), 100, words, exponent))


def test_lengths_have_the_mean_and_spread_asked_for() -> None:
    lengths = sentence_lengths(generator(), 50_000, mean=20, spread=8, longest=1_000)
    assert lengths.mean() == pytest.approx(20, rel=0.02)
    assert lengths.std() == pytest.approx(8, rel=0.03)
    assert lengths.dtype == np.int64


def test_no_spread_gives_equal_lengths() -> None:
    assert sentence_lengths(generator(), 5, mean=7, spread=0, longest=50).tolist() == [7] * 5


@given(st.floats(0.1, 100), st.floats(0, 100), st.integers(1, 30))
def test_lengths_keep_within_their_limits(mean: float, spread: float, longest: int) -> None:
    lengths = sentence_lengths(generator(), 100, mean, spread, longest)
    assert 1 <= lengths.min() <= lengths.max() <= longest
