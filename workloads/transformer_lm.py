"""Transformer language model: decoder only, in GPT-2's form.

Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, section 2.3: normalization before
each part, learned positions, output layer tied to the embedding.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from charact.workload.key_value_cache import KeyValueCache

from ._attention import DROPOUT, Layer, Sizes
from ._language_model import LanguageModelWorkload

SIZES = {
    "small": Sizes(width=256, num_heads=4, num_layers=4, num_words=33_278, context=2048),
    "gpt2": Sizes(width=768, num_heads=12, num_layers=12, num_words=50_257, context=1024),
}


class LanguageModel(nn.Module):
    """GPT-2's form: every place sees those before it; the output layer shares the embedding's weights."""

    def __init__(self, sizes: Sizes, num_words: int) -> None:
        super().__init__()
        assert sizes.context is not None
        self.words = nn.Embedding(num_words, sizes.width)
        self.positions = nn.Embedding(sizes.context, sizes.width)
        self.dropout = nn.Dropout(DROPOUT)
        self.layers = nn.ModuleList(
            Layer(sizes, nn.GELU(approximate="tanh"), causal=True, cross=False, norm_first=True)
            for _ in range(sizes.num_layers)
        )
        self.norm = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, num_words, bias=False)
        self.head.weight = self.words.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                # What is added to the shortcut is scaled down, so that its sum over the layers does not grow.
                added = name.endswith(("attention.out.weight", "mlp.2.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * sizes.num_layers) if added else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, words: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        """Words (N, T) to logits of the next ones, (N, T, vocabulary); with a cache only those after the last word."""
        first = 0 if cache is None else cache.length
        places = first + torch.arange(words.shape[1], device=words.device)
        x = self.dropout(self.words(words) + self.positions(places))
        for index, layer in enumerate(self.layers):
            x = layer(x, extend=None if cache is None else partial(cache.extend, index))
        if cache is not None:
            cache.advance(words.shape[1])
            x = x[:, -1:]
        logits: Tensor = self.head(self.norm(x))
        return logits


@dataclass(kw_only=True)
class TransformerLM(LanguageModelWorkload):
    """A decoder-only language model: `small`, or GPT-2 with 124 million parameters."""

    name: str = "transformer_lm"
    source: str = "Radford et al., Language Models are Unsupervised Multitask Learners, 2019"
    year: int | None = 2019
    variants: tuple[str, ...] = tuple(SIZES)

    @property
    def sizes(self) -> Sizes:
        """Sizes of the variant."""
        return SIZES[self.variant]

    def model(self, dataset: Any) -> LanguageModel:
        """Return the network for the dataset's vocabulary."""
        return LanguageModel(self.sizes, dataset.num_words)


WORKLOADS = [TransformerLM()]
