"""Caches of keys and values, which a decoder keeps of the words that it has read."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn import functional


class KeyValueCache(ABC):
    """Keys and values of earlier words by layer, each (N, heads, words, width of a head)."""

    def __init__(self) -> None:
        self.length = 0
        """Number of words that have been read, the same in each request."""
        self._kept = 0

    @abstractmethod
    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add the keys and values of new words in a layer; return those of all words so far."""

    def advance(self, num_words: int) -> None:
        """Count new words, after all layers have read them."""
        self.length += num_words

    def keep(self) -> None:
        """Mark the words so far as those of the prompts."""
        self._kept = self.length

    def cut(self) -> None:
        """Forget the words after the prompts."""
        self.length = self._kept

    def go_to(self, num_words: int) -> None:
        """Go on as if so many words had been read after the prompts."""
        self.cut()
        if num_words:
            self.skip(num_words)

    @abstractmethod
    def skip(self, num_words: int) -> None:
        """Count words as read, with arbitrary keys and values."""

    def clear(self) -> None:
        """Forget all words."""
        self.length = self._kept = 0

    @abstractmethod
    def tensors(self) -> list[Tensor]:
        """Return what the cache consists of."""


class StaticCache(KeyValueCache):
    """A cache with memory for a number of words from the beginning."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._capacity = capacity
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """See `KeyValueCache`."""
        held = self._layers.get(layer)
        if held is None:
            held = self._layers[layer] = self._allocated(keys), self._allocated(values)
        end = self.length + keys.shape[2]
        for buffer, new in zip(held, (keys, values), strict=True):
            buffer[:, :, self.length:end] = new
        return held[0][:, :, :end], held[1][:, :, :end]

    def skip(self, num_words: int) -> None:
        """See `KeyValueCache`."""
        self.length += num_words

    def tensors(self) -> list[Tensor]:
        """See `KeyValueCache`."""
        return [tensor for pair in self._layers.values() for tensor in pair]

    def _allocated(self, like: Tensor) -> Tensor:
        # Zeros, since the memory of an empty tensor may hold numbers that are very slow to multiply.
        return like.new_zeros(*like.shape[:2], self._capacity, like.shape[3])


class GrowingCache(KeyValueCache):
    """A cache that is copied into a larger one for each word, as in transformers' `DynamicCache`."""

    def __init__(self) -> None:
        super().__init__()
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """See `KeyValueCache`."""
        if layer in self._layers:
            held = self._layers[layer]
            keys, values = torch.cat((held[0], keys), 2), torch.cat((held[1], values), 2)
        self._layers[layer] = keys, values
        return keys, values

    def cut(self) -> None:
        """See `KeyValueCache`."""
        super().cut()
        for layer, pair in self._layers.items():
            keys, values = (tensor[:, :, :self.length] for tensor in pair)
            self._layers[layer] = keys, values

    def skip(self, num_words: int) -> None:
        """See `KeyValueCache`."""
        self.length += num_words
        for layer, pair in self._layers.items():
            keys, values = (functional.pad(tensor, (0, 0, 0, num_words)) for tensor in pair)
            self._layers[layer] = keys, values

    def clear(self) -> None:
        """See `KeyValueCache`."""
        super().clear()
        self._layers = {}

    def tensors(self) -> list[Tensor]:
        """See `KeyValueCache`."""
        return [tensor for pair in self._layers.values() for tensor in pair]


class EightBitCache(StaticCache):
    """A static cache of 8-bit integers, with a scale for each word and head: half or a quarter of the memory.

    All keys and values are converted back for each word, and are rounded to 1/127 of the largest one of a head.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._scales: dict[int, tuple[Tensor, Tensor]] = {}

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """See `KeyValueCache`."""
        if layer not in self._layers:
            self._layers[layer] = self._allocated(keys).to(torch.int8), self._allocated(values).to(torch.int8)
            self._scales[layer] = self._allocated(keys[..., :1]), self._allocated(values[..., :1])
        end = self.length + keys.shape[2]
        found = []
        for integers, scales, new in zip(self._layers[layer], self._scales[layer], (keys, values), strict=True):
            scale = new.abs().amax(3, keepdim=True).clamp(min=torch.finfo(new.dtype).tiny) / 127
            scales[:, :, self.length:end] = scale
            integers[:, :, self.length:end] = (new / scale).round().to(torch.int8)
            found.append(integers[:, :, :end].to(new.dtype) * scales[:, :, :end])
        return found[0], found[1]

    def tensors(self) -> list[Tensor]:
        """See `KeyValueCache`."""
        return [*super().tensors(), *(tensor for pair in self._scales.values() for tensor in pair)]


class NoCache(KeyValueCache):
    """A cache that keeps nothing, so that all words are read again for each new one."""

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values."""
        return keys, values

    def advance(self, num_words: int) -> None:
        """Count no words: the next ones begin at the first position again."""

    def skip(self, num_words: int) -> None:
        """Count no words."""

    def tensors(self) -> list[Tensor]:
        """Return none."""
        return []


KINDS = {"static": StaticCache, "growing": lambda capacity: GrowingCache(), "int8": EightBitCache}
"""Function of each of `schema.CACHES` but `none` that returns an empty cache with a capacity (words)."""
