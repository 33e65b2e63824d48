"""Generation: a model that reads prompts at once, and then one word after another, with a state between them."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

    from charact.workload.key_value_cache import KeyValueCache


class Generator(ABC):
    """A model that generates for a batch of requests, all with prompts of one length.

    Words are int64, and N is the number of requests.
    """

    @abstractmethod
    def prefill(self, batch: Any) -> "Tensor":
        """Forget earlier requests and read the prompts of a batch; return logits of the next words, (N, vocabulary)."""

    @abstractmethod
    def decode(self, words: "Tensor") -> "Tensor":
        """Read one more word of each request, (N,); return logits of the next ones, (N, vocabulary)."""

    @abstractmethod
    def go_to(self, num_words: int) -> None:
        """Go on as if so many words had been read after the prompts; what the state says of them is arbitrary.

        With 0 it is as after `prefill`.
        """

    @abstractmethod
    def state(self) -> "list[Tensor]":
        """Return the tensors that are kept from one word to the next, such as keys and values."""


class DecoderGenerator(Generator):
    """A decoder with a cache of keys and values.

    Args:
        model: called with words (N, T) and a `KeyValueCache`; returns logits of the last words, (N, 1, vocabulary).
        output_size: words of each request after its prompt.
        cache: kind of the cache, one of `schema.CACHES`.
        prompts: returns the prompts (N, T) of a batch.
        window: number of words that a word attends to, itself included; None for all before it.
    """

    def __init__(self, model: "nn.Module", output_size: int, cache: str, prompts: "Callable[[Any], Tensor]",
                 window: int | None = None) -> None:
        self._model, self._output_size, self._kind, self._prompts = model, output_size, cache, prompts
        self._window = window
        self._cache: KeyValueCache | None = None

    def prefill(self, batch: Any) -> "Tensor":
        """See `Generator`."""
        from charact.workload.key_value_cache import KINDS

        prompts = self._prompts(batch)
        if self._cache is None:
            self._cache = KINDS[self._kind](prompts.shape[1] + self._output_size, self._window)
        self._cache.clear()
        logits: Tensor = self._model(prompts, self._cache)[:, -1]
        self._cache.keep()
        return logits

    def decode(self, words: "Tensor") -> "Tensor":
        """See `Generator`."""
        logits: Tensor = self._model(words[:, None], self._cache)[:, -1]
        return logits

    def go_to(self, num_words: int) -> None:
        """See `Generator`."""
        assert self._cache is not None
        self._cache.go_to(num_words)

    def state(self) -> "list[Tensor]":
        """Return all keys and values."""
        return [] if self._cache is None else self._cache.tensors()


class RecomputingGenerator(Generator):
    """A model that keeps nothing: it reads prompts and outputs again for each word.

    Args:
        logits: returns logits of the next words, (N, vocabulary), after words (N, T).
        prompts: returns the prompts (N, T) of a batch.
    """

    def __init__(self, logits: "Callable[[Tensor], Tensor]", prompts: "Callable[[Any], Tensor]") -> None:
        self._logits, self._prompts = logits, prompts
        self._words: Tensor | None = None
        """Words of prompts and outputs so far."""
        self._num_prompt_words = 0

    def prefill(self, batch: Any) -> "Tensor":
        """See `Generator`."""
        self._words = self._prompts(batch)
        self._num_prompt_words = self._words.shape[1]
        return self._logits(self._words)

    def decode(self, words: "Tensor") -> "Tensor":
        """See `Generator`."""
        import torch

        assert self._words is not None
        self._words = torch.cat((self._words, words[:, None]), 1)
        return self._logits(self._words)

    def go_to(self, num_words: int) -> None:
        """See `Generator`."""
        from torch.nn import functional

        assert self._words is not None
        self._words = functional.pad(self._words[:, :self._num_prompt_words], (0, num_words))

    def state(self) -> "list[Tensor]":
        """Return none: neither keys and values nor a hidden state are kept."""
        return []
