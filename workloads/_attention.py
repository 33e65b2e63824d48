"""The layer of transformers: attention and a pointwise network, each with a norm and a shortcut.

Attention weights have no dropout: Vaswani et al. name none, and today's models have none.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

DROPOUT = 0.1
Extend = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Function that stores new keys and values, each (N, heads, T, head width), and returns those of all positions."""
KeysAndValues = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class LayerSizes:
    """Sizes of the layers of a transformer; the pointwise network is 4 times as wide inside."""

    width: int
    num_heads: int
    num_layers: int


@dataclass(frozen=True, kw_only=True)
class Sizes(LayerSizes):
    """Sizes of a transformer of text."""

    num_words: int
    context: int | None = None
    """Longest sequence that there are learned positions for; None where positions are computed."""


def attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None, *, causal: bool = False,
           window: int | None = None) -> Tensor:
    """Compute attention of queries (N, heads, T, head width) to keys and values (N, key heads, S, head width).

    Causal attention takes the queries for the last T of S positions. With a window, each sees as many positions at
    most, its own included; a single query may get those alone, in any order. If there are fewer key heads than heads,
    each serves as many heads in a row.
    """
    num_queries, num_keys = query.shape[2], keys.shape[2]
    is_windowed = window is not None and window < num_keys
    needs_mask = causal and num_queries > 1 and (num_queries < num_keys or is_windowed)
    if needs_mask:
        num_before = num_keys - num_queries
        mask = torch.ones(num_queries, num_keys, dtype=torch.bool, device=query.device).tril(num_before)
        if window is not None and is_windowed:
            mask = mask.triu(num_before - window + 1)
    return functional.scaled_dot_product_attention(
        query, keys, values, attn_mask=mask, is_causal=causal and not needs_mask and num_queries > 1,
        enable_gqa=query.shape[1] != keys.shape[1])


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(N, T, width) to (N, heads, T, head width)."""
    return x.reshape(*x.shape[:2], num_heads, -1).transpose(1, 2)


class Attention(nn.Module):
    """Multi-head attention of a sequence to a memory."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, memory: Tensor | KeysAndValues, mask: Tensor | None = None, *, causal: bool = False,
                extend: Extend | None = None) -> Tensor:
        """(N, T, width) and (N, S, width) to (N, T, width); `mask` (N, 1, 1, S) is true where memory may be seen.

        Instead of the memory, there may be its keys and values.
        """
        query = split_heads(self.query(x), self.num_heads)
        key, value = memory if isinstance(memory, tuple) else self.keys_and_values(memory)
        if extend is not None:
            key, value = extend(key, value)
        outputs: Tensor = self.out(attend(query, key, value, mask, causal=causal).transpose(1, 2).flatten(2))
        return outputs


    def keys_and_values(self, memory: Tensor) -> KeysAndValues:
        """(N, S, width) to keys and values, each (N, heads, S, head width)."""
        return split_heads(self.key(memory), self.num_heads), split_heads(self.value(memory), self.num_heads)


class Layer(nn.Module):
    """Attention to itself, in a decoder attention to the encoder's output, and a pointwise network."""

    def __init__(self, sizes: LayerSizes, activation: nn.Module, *, causal: bool, cross: bool,
                 norm_first: bool) -> None:
        super().__init__()
        self.causal = causal
        self.norm_first = norm_first
        self.attention = Attention(sizes.width, sizes.num_heads)
        self.attention_norm = nn.LayerNorm(sizes.width)
        if cross:
            self.cross_attention = Attention(sizes.width, sizes.num_heads)
            self.cross_attention_norm = nn.LayerNorm(sizes.width)
        inner = 4 * sizes.width
        self.mlp = nn.Sequential(nn.Linear(sizes.width, inner), activation, nn.Linear(inner, sizes.width))
        self.mlp_norm = nn.LayerNorm(sizes.width)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor, mask: Tensor | None = None, memory: Tensor | KeysAndValues | None = None,
                extend: Extend | None = None) -> Tensor:
        """(N, T, width) to the same; the mask is the memory's where there is one, else the sequence's own."""
        own_mask = mask if memory is None else None
        x = self._add(x, self.attention_norm, lambda y: self.attention(
            y, y, own_mask, causal=self.causal, extend=extend))
        if memory is not None:
            x = self._add(x, self.cross_attention_norm, lambda y: self.cross_attention(y, memory, mask))
        return self._add(x, self.mlp_norm, self.mlp)

    def _add(self, x: Tensor, norm: nn.Module, part: Callable[[Tensor], Tensor]) -> Tensor:
        outputs: Tensor = x + self.dropout(part(norm(x))) if self.norm_first else norm(x + self.dropout(part(x)))
        return outputs
