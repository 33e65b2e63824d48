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
        """Add the keys and values of new words in a layer; return those that the new words attend to.

        They are those of all words so far. With a window, a single word gets those of its window, in any order.
        """

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
    """A cache with memory for a number of words from the beginning, at most for those of a window.

    If the window is full, a new word takes the place of the oldest one (a rolling buffer). What a prompt loses so is
    copied before, next to the cache.
    """

    def __init__(self, capacity: int, window: int | None = None) -> None:
        super().__init__()
        self._capacity = capacity
        self._num_places = capacity if window is None else min(window, capacity)
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._lost: dict[int, list[Tensor]] = {}
        """By layer, what later words overwrite of the prompts."""

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """See `KeyValueCache`."""
        if layer not in self._layers:
            self._allocate(layer, keys, values)
        num_new, most = keys.shape[2], self._num_places
        end = self.length + num_new
        if end <= most:
            self._write(layer, slice(self.length, end), keys, values)
            return self._read(layer, end, keys.dtype)
        assert end <= self._capacity, "more words than the capacity"
        if num_new > 1:
            assert self.length == 0, "a full window gets one word at a time"
            places = torch.arange(end - most, end, device=keys.device) % most
            self._write(layer, places, keys[:, :, -most:], values[:, :, -most:])
            return keys, values
        self._save(layer)
        place = self.length % most
        self._write(layer, slice(place, place + 1), keys, values)
        return self._read(layer, most, keys.dtype)

    def skip(self, num_words: int) -> None:
        """See `KeyValueCache`."""
        for layer in self._layers:
            self._save(layer)
        self.length += num_words

    def cut(self) -> None:
        """See `KeyValueCache`."""
        super().cut()
        for layer, lost in self._lost.items():
            for tensor, before in zip(self._tensors(layer), lost, strict=True):
                tensor[:, :, self._reused(tensor.device)] = before

    def clear(self) -> None:
        """See `KeyValueCache`."""
        super().clear()
        self._lost = {}

    def tensors(self) -> list[Tensor]:
        """See `KeyValueCache`."""
        return [tensor for layer in self._layers for tensor in self._tensors(layer)]

    def _save(self, layer: int) -> None:
        if layer not in self._lost and self._capacity > self._num_places:
            self._lost[layer] = [tensor[:, :, self._reused(tensor.device)] for tensor in self._tensors(layer)]

    def _reused(self, device: torch.device) -> Tensor:
        """Return the places of earlier words that later words take, if a prompt gets all its outputs."""
        positions = torch.arange(max(self._kept, self._num_places), self._capacity, device=device)
        return positions[:self._num_places] % self._num_places

    def _allocate(self, layer: int, keys: Tensor, values: Tensor) -> None:
        self._layers[layer] = self._allocated(keys), self._allocated(values)

    def _allocated(self, like: Tensor) -> Tensor:
        # Zeros, since the memory of an empty tensor may hold numbers that are very slow to multiply.
        return like.new_zeros(*like.shape[:2], self._num_places, like.shape[3])

    def _write(self, layer: int, places: slice | Tensor, keys: Tensor, values: Tensor) -> None:
        for buffer, new in zip(self._layers[layer], (keys, values), strict=True):
            buffer[:, :, places] = new

    def _read(self, layer: int, num_places: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        keys, values = self._layers[layer]
        return keys[:, :, :num_places], values[:, :, :num_places]

    def _tensors(self, layer: int) -> list[Tensor]:
        return list(self._layers[layer])


class GrowingCache(KeyValueCache):
    """A cache that is copied into a larger one for each word, as in transformers' `DynamicCache`.

    With a window, only what the next word attends to is kept.
    """

    def __init__(self, capacity: int | None = None, window: int | None = None) -> None:
        super().__init__()
        self._window = None if window is None or (capacity is not None and capacity <= window) else window
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._of_prompts: dict[int, tuple[Tensor, Tensor]] = {}
        """What was kept after the prompts, if later words push some of it out of the window."""

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """See `KeyValueCache`."""
        num_new = keys.shape[2]
        if layer in self._layers:
            held = self._layers[layer]
            keys, values = torch.cat((held[0], keys), 2), torch.cat((held[1], values), 2)
        self._layers[layer] = keys, values
        if self._window is not None and keys.shape[2] >= self._window:
            first = keys.shape[2] - self._window + 1
            held = keys[:, :, first:], values[:, :, first:]
            # A view of a long prompt would hold the whole of it.
            self._layers[layer] = held if num_new == 1 else (held[0].clone(), held[1].clone())
        return keys, values

    def keep(self) -> None:
        """See `KeyValueCache`."""
        super().keep()
        if self._window is not None:
            self._of_prompts = dict(self._layers)

    def cut(self) -> None:
        """See `KeyValueCache`."""
        super().cut()
        self._layers = dict(self._of_prompts) or {
            layer: (keys[:, :, :self.length], values[:, :, :self.length])
            for layer, (keys, values) in self._layers.items()}

    def skip(self, num_words: int) -> None:
        """See `KeyValueCache`."""
        self.length += num_words
        for layer, pair in self._layers.items():
            num_held, num_added = pair[0].shape[2], num_words
            if self._window is not None:
                num_added = min(num_words, self._window - 1)
                num_held = min(num_held, self._window - 1 - num_added)
            keys, values = (functional.pad(tensor[:, :, tensor.shape[2] - num_held:], (0, 0, 0, num_added))
                            for tensor in pair)
            self._layers[layer] = keys, values

    def clear(self) -> None:
        """See `KeyValueCache`."""
        super().clear()
        self._layers, self._of_prompts = {}, {}

    def tensors(self) -> list[Tensor]:
        """See `KeyValueCache`."""
        return [tensor for pair in self._layers.values() for tensor in pair]


class EightBitCache(StaticCache):
    """A static cache of 8-bit integers, with a scale for each word and head: half or a quarter of the memory.

    All keys and values are converted back for each word, and are rounded to 1/127 of the largest one of a head.
    """

    def __init__(self, capacity: int, window: int | None = None) -> None:
        super().__init__(capacity, window)
        self._scales: dict[int, tuple[Tensor, Tensor]] = {}

    def _allocate(self, layer: int, keys: Tensor, values: Tensor) -> None:
        self._layers[layer] = self._allocated(keys).to(torch.int8), self._allocated(values).to(torch.int8)
        self._scales[layer] = self._allocated(keys[..., :1]), self._allocated(values[..., :1])

    def _write(self, layer: int, places: slice | Tensor, keys: Tensor, values: Tensor) -> None:
        for integers, scales, new in zip(self._layers[layer], self._scales[layer], (keys, values), strict=True):
            scale = new.abs().amax(3, keepdim=True).clamp(min=torch.finfo(new.dtype).tiny) / 127
            scales[:, :, places] = scale
            integers[:, :, places] = (new / scale).round().to(torch.int8)

    def _read(self, layer: int, num_places: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        keys, values = (integers[:, :, :num_places].to(dtype) * scales[:, :, :num_places]
                        for integers, scales in zip(self._layers[layer], self._scales[layer], strict=True))
        return keys, values

    def _tensors(self, layer: int) -> list[Tensor]:
        return [*self._layers[layer], *self._scales[layer]]


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


KINDS: dict[str, type[StaticCache | GrowingCache]] = {
    "static": StaticCache, "growing": GrowingCache, "int8": EightBitCache}
"""Class of each of `schema.CACHES` but `none`, called with a capacity (words), and a window if there is one."""
