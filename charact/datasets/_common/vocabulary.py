"""Vocabularies, and synthetic text with realistic word frequencies and lengths. Imports no torch."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int64]
"""(N,) word indices, each from 0 to the vocabulary's size - 1."""


class Vocabulary:
    """Words and their indices, from 0 in the given order.

    A repeated word keeps its first index. Words outside have the index of `unknown`, if there is one.
    """

    def __init__(self, words: Iterable[str], unknown: str | None = None) -> None:
        self.words = tuple(dict.fromkeys(words))
        self._numbers = {word: number for number, word in enumerate(self.words)}
        self._unknown = None if unknown is None else self._numbers[unknown]

    @classmethod
    def from_tokens(cls, tokens: Iterable[str], specials: Iterable[str], unknown: str | None = None) -> "Vocabulary":
        """Return the vocabulary of a text: its special words first, then the others by their first occurrence."""
        return cls((*specials, *dict.fromkeys(tokens)), unknown)

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self._numbers

    def __getitem__(self, word: str) -> int:
        """Return the index of a word, or of the unknown word.

        Raises:
            KeyError: the word is not in the vocabulary, and there is no unknown word.
        """
        number = self._numbers.get(word, self._unknown)
        if number is None:
            raise KeyError(word)
        return number

    def encode(self, tokens: Iterable[str]) -> Tokens:
        """Return the indices of words.

        Raises:
            KeyError: a word is not in the vocabulary, and there is no unknown word.
        """
        return np.fromiter((self[token] for token in tokens), np.int64)

    def decode(self, numbers: Iterable[int]) -> list[str]:
        """Return the words of indices."""
        return [self.words[number] for number in numbers]


def zipf_tokens(generator: np.random.Generator, num_tokens: int, vocabulary_size: int, exponent: float = 1.0) -> Tokens:
    """Return synthetic text: independent words, index k with probability proportional to (k + 1) ** -exponent.

    *Source*: Zipf's law: rank times frequency is about constant (exponent 1) in natural language.
    """
    cumulative = np.cumsum(np.arange(1, vocabulary_size + 1, dtype=np.float64) ** -exponent)
    drawn = generator.random(num_tokens) * cumulative[-1]
    tokens: Tokens = np.searchsorted(cumulative, drawn, side="right")
    return tokens


def sentence_lengths(generator: np.random.Generator, n: int, mean: float, spread: float, longest: int) -> Tokens:
    """Return the lengths of n synthetic sentences, in words: log-normal, rounded, and clipped to 1 to `longest`.

    Mean and standard deviation are those before rounding and clipping; a spread of 0 gives equal lengths.
    """
    variance = np.log1p((spread / mean) ** 2)
    lengths = generator.lognormal(np.log(mean) - variance / 2, np.sqrt(variance), n)
    return np.clip(np.rint(lengths), 1, longest).astype(np.int64)
