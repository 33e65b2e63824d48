"""Text as numbers: vocabularies, and made-up text with the statistics that its cost depends on. No torch in here."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int64]
"""(N,) numbers of words, each from 0 to the vocabulary's size - 1."""


class Vocabulary:
    """Words and their numbers, which count from 0 in the order given.

    Args:
        words: the words; one that comes again keeps its first number.
        unknown: word of the vocabulary that stands for those that are not in it; None refuses them.
    """

    def __init__(self, words: Iterable[str], unknown: str | None = None) -> None:
        self.words = tuple(dict.fromkeys(words))
        self._numbers = {word: number for number, word in enumerate(self.words)}
        self._unknown = None if unknown is None else self._numbers[unknown]

    @classmethod
    def from_tokens(
        cls, tokens: Iterable[str], *, specials: Sequence[str] = (), unknown: str | None = None,
        order: Literal["occurrence", "frequency"] = "occurrence", max_words: int | None = None,
    ) -> "Vocabulary":
        """Vocabulary of a text: its special words first, then the others.

        Args:
            tokens: the text's words.
            specials: words with the first numbers, whether the text has them or not.
            unknown: as for the class; it must be among the specials or in the text.
            order: by first occurrence, or by descending frequency (equally frequent words by first occurrence).
            max_words: at most so many words, the specials included; the last in order are left out.
        """
        if order == "frequency":
            words: Iterable[str] = (word for word, _ in Counter(tokens).most_common())
        else:
            words = dict.fromkeys(tokens)
        kept = tuple(dict.fromkeys([*specials, *words]))[:max_words]
        return cls(kept, unknown)

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self._numbers

    def __getitem__(self, word: str) -> int:
        """Number of a word, or of the unknown word.

        Raises:
            KeyError: the word is not in the vocabulary, which has no unknown word.
        """
        number = self._numbers.get(word, self._unknown)
        if number is None:
            raise KeyError(word)
        return number

    def encode(self, tokens: Iterable[str]) -> Tokens:
        """Numbers of words.

        Raises:
            KeyError: a word is not in the vocabulary, which has no unknown word.
        """
        return np.fromiter((self[token] for token in tokens), np.int64)

    def decode(self, numbers: Iterable[int]) -> list[str]:
        """Words of numbers."""
        return [self.words[number] for number in numbers]


def zipf_tokens(generator: np.random.Generator, num_tokens: int, vocabulary_size: int, exponent: float = 1.0) -> Tokens:
    """Made-up text: independent words, number k as probable as (k + 1) ** -exponent; exponent 0 is uniform.

    *Source*: Zipf's law, rank times frequency is about constant (exponent 1) in natural language.
    """
    cumulative = np.cumsum(np.arange(1, vocabulary_size + 1, dtype=np.float64) ** -exponent)
    drawn = generator.random(num_tokens) * cumulative[-1]
    tokens: Tokens = np.searchsorted(cumulative, drawn, side="right")
    return tokens


def sentence_lengths(generator: np.random.Generator, n: int, mean: float, spread: float, longest: int) -> Tokens:
    """Lengths of n made-up sentences, in words: log-normal, rounded, and kept within 1 to `longest`.

    Args:
        generator: source of randomness.
        n: number of sentences.
        mean: mean length before rounding and limiting.
        spread: standard deviation likewise; 0 gives equal lengths.
        longest: no sentence is longer.
    """
    variance = np.log1p((spread / mean) ** 2)
    lengths = generator.lognormal(np.log(mean) - variance / 2, np.sqrt(variance), n)
    return np.clip(np.rint(lengths), 1, longest).astype(np.int64)
