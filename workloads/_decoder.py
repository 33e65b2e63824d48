"""Decoder in the form of Llama: RMSNorm, rotary positions, grouped queries, a gated pointwise network, no biases.

Sources: Su et al., "RoFormer", 2021 (rotary positions); Ainslie et al., "GQA", 2023 (grouped queries); Shazeer, "GLU
Variants Improve Transformer", 2020 (the gated network); Beltagy et al., "Longformer", 2020 (sliding windows).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from charact.workload.key_value_cache import KeyValueCache

from ._attention import Extend, attend, split_heads

STD = 0.02
"""Standard deviation of new weights, as in GPT-2."""
EPSILON = 1e-5
Rotations = tuple[Tensor, Tensor]
"""Cosines and sines of the angles, each (T, head width / 2)."""


@dataclass(frozen=True, kw_only=True)
class DecoderSizes:
    """Sizes of a decoder."""

    width: int
    num_heads: int
    num_kv_heads: int
    """Heads of keys and values."""
    num_layers: int
    inner: int
    """Width inside the gated network."""
    num_words: int
    context: int
    """Longest sequence in words."""
    base: float
    """Base of the rotary frequencies."""
    window: int | None = None
    """Number of words that a word attends to, itself included; None for all before it."""
    tied: bool = False
    """Whether the output layer shares the embedding's weights."""

    @property
    def head_width(self) -> int:
        """Width of a head."""
        return self.width // self.num_heads

    @property
    def added_std(self) -> float:
        """Standard deviation of weights whose output is added to the shortcut, whose sum then grows less."""
        return STD / math.sqrt(2 * self.num_layers)


class Matrix(nn.Linear):
    """Linear layer without bias, whose weights are drawn once: drawing billions of them twice takes a minute."""

    def __init__(self, num_inputs: int, num_outputs: int, std: float = STD) -> None:
        self.std = std
        super().__init__(num_inputs, num_outputs, bias=False)

    def reset_parameters(self) -> None:
        """Draw the weights from a normal distribution."""
        nn.init.normal_(self.weight, std=self.std)


class GatedNetwork(nn.Module):
    """SwiGLU: the product of a gate and a projection, and a projection back."""

    def __init__(self, sizes: DecoderSizes) -> None:
        super().__init__()
        self.gate = Matrix(sizes.width, sizes.inner)
        self.up = Matrix(sizes.width, sizes.inner)
        self.down = Matrix(sizes.inner, sizes.width, sizes.added_std)

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) to the same."""
        outputs: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return outputs


class GroupedAttention(nn.Module):
    """Causal attention with rotary positions, of which several heads share keys and values.

    PyTorch's kernels read the shared keys and values in place, except in fp32 on CUDA: there it repeats them and stores
    all scores.
    """

    def __init__(self, sizes: DecoderSizes) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.window = sizes.num_heads, sizes.num_kv_heads, sizes.window
        kv_width = sizes.num_kv_heads * sizes.head_width
        self.query = Matrix(sizes.width, sizes.width)
        self.key = Matrix(sizes.width, kv_width)
        self.value = Matrix(sizes.width, kv_width)
        self.out = Matrix(sizes.width, sizes.width, sizes.added_std)

    def forward(self, x: Tensor, rotations: Rotations, extend: Extend | None = None) -> Tensor:
        """(N, T, width) to the same."""
        query = rotate(split_heads(self.query(x), self.num_heads), rotations)
        keys = rotate(split_heads(self.key(x), self.num_kv_heads), rotations)
        values = split_heads(self.value(x), self.num_kv_heads)
        if extend is not None:
            keys, values = extend(keys, values)
        attended = attend(query, keys, values, causal=True, window=self.window)
        outputs: Tensor = self.out(attended.transpose(1, 2).flatten(2))
        return outputs


class DecoderLayer(nn.Module):
    """Attention and a pointwise network, each after a norm and added to the shortcut."""

    def __init__(self, sizes: DecoderSizes, mlp: nn.Module) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(sizes.width, eps=EPSILON)
        self.attention = GroupedAttention(sizes)
        self.mlp_norm = nn.RMSNorm(sizes.width, eps=EPSILON)
        self.mlp = mlp

    def forward(self, x: Tensor, rotations: Rotations, extend: Extend | None = None) -> Tensor:
        """(N, T, width) to the same."""
        x = x + self.attention(self.attention_norm(x), rotations, extend)
        outputs: Tensor = x + self.mlp(self.mlp_norm(x))
        return outputs


class Decoder(nn.Module):
    """Embedding, layers and an output layer; `mlp` returns the pointwise network of a new layer."""

    def __init__(self, sizes: DecoderSizes, num_words: int, mlp: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.sizes = sizes
        self.words = nn.Embedding(num_words, sizes.width)
        nn.init.normal_(self.words.weight, std=STD)
        self.layers = nn.ModuleList(DecoderLayer(sizes, mlp()) for _ in range(sizes.num_layers))
        self.norm = nn.RMSNorm(sizes.width, eps=EPSILON)
        self.head = Matrix(sizes.width, num_words)
        if sizes.tied:
            self.head.weight = self.words.weight

    def forward(self, words: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        """Words (N, T) to logits of the next ones, (N, T, vocabulary); with a cache only those after the last word."""
        first = 0 if cache is None else cache.length
        x = self.words(words)
        positions = first + torch.arange(words.shape[1], device=words.device)
        rotations = rotations_at(positions, self.sizes.head_width, self.sizes.base, x.dtype)
        for index, layer in enumerate(self.layers):
            x = layer(x, rotations, None if cache is None else partial(cache.extend, index))
        if cache is not None:
            cache.advance(words.shape[1])
            x = x[:, -1:]
        logits: Tensor = self.head(self.norm(x))
        return logits


def rotations_at(positions: Tensor, head_width: int, base: float, dtype: torch.dtype) -> Rotations:
    """Return cosines and sines of position times frequency; frequencies fall from 1 to nearly 1 / base.

    Angles are computed in fp32, since in bf16 those of late positions would be wrong by whole turns.
    """
    exponents = torch.arange(0, head_width, 2, device=positions.device, dtype=torch.float32) / head_width
    angles = positions.to(torch.float32)[:, None] * base**-exponents
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, rotations: Rotations) -> Tensor:
    """Rotate pairs of features, i and i + head width / 2, of queries or keys (N, heads, T, head width)."""
    cosines, sines = rotations
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1).to(x.dtype)
