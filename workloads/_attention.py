"""The layer of transformers: attention and a pointwise network, each with a norm and a shortcut.

Attention weights have no dropout: Vaswani et al. name none, and today's models have none.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

DROPOUT = 0.1


@dataclass(frozen=True)
class Sizes:
    """Sizes of a transformer; the pointwise network is 4 times as wide inside."""

    width: int
    num_heads: int
    num_layers: int
    num_words: int
    context: int | None = None
    """Longest sequence that there are learned positions for; None where positions are computed."""


class Attention(nn.Module):
    """Multi-head attention of a sequence to a memory."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None, *, is_causal: bool = False) -> Tensor:
        """(N, T, width) and (N, S, width) to (N, T, width); `mask` (N, 1, 1, S) is true where memory may be seen."""
        query, key, value = self._heads(self.query(x)), self._heads(self.key(memory)), self._heads(self.value(memory))
        heads = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=is_causal)
        outputs: Tensor = self.out(heads.transpose(1, 2).flatten(2))
        return outputs

    def _heads(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:2], self.num_heads, -1).transpose(1, 2)


class Layer(nn.Module):
    """Attention to itself, in a decoder attention to the encoder's output, and a pointwise network."""

    def __init__(self, sizes: Sizes, activation: nn.Module, *, causal: bool, cross: bool, norm_first: bool) -> None:
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

    def forward(self, x: Tensor, mask: Tensor | None = None, memory: Tensor | None = None) -> Tensor:
        """(N, T, width) to the same; the mask is the memory's where there is one, else the sequence's own."""
        own_mask = mask if memory is None else None
        x = self._add(x, self.attention_norm, lambda y: self.attention(y, y, own_mask, is_causal=self.causal))
        if memory is not None:
            x = self._add(x, self.cross_attention_norm, lambda y: self.cross_attention(y, memory, mask))
        return self._add(x, self.mlp_norm, self.mlp)

    def _add(self, x: Tensor, norm: nn.Module, part: Callable[[Tensor], Tensor]) -> Tensor:
        outputs: Tensor = x + self.dropout(part(norm(x))) if self.norm_first else norm(x + self.dropout(part(x)))
        return outputs
