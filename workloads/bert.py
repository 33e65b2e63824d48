"""BERT: a bidirectional encoder, trained to restore masked words.

Source: Devlin et al., "BERT", NAACL 2019, sections 3 and A.2; `tiny` is the smallest size of Turc et al., "Well-Read
Students Learn Better", 2019. There is no prediction of the next sentence, and attention weights have no dropout.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from charact.datasets._samples.text_streams import TokenStreams, language_model_dataset
from charact.workload import DataRequest

from ._attention import DROPOUT, Layer, Sizes
from ._language_model import LanguageModelWorkload

SIZES = {
    "tiny": Sizes(width=128, num_heads=2, num_layers=2, num_words=30_522, context=512),
    "base": Sizes(width=768, num_heads=12, num_layers=12, num_words=30_522, context=512),
}
NUM_TYPES = 2
"""Types of words: those of the first and of the second sentence."""
MASKED_FRAC = 0.15
NOT_PREDICTED = -100
"""Target of words that are not predicted, which PyTorch's cross-entropy ignores."""


class MaskedSegments(Dataset[tuple[Tensor, Tensor]]):
    """Segments of text of which 15 % of the words are predicted: 80 % of these are masked, 10 % replaced, 10 % kept.

    The choice depends only on the seed and the segment. The mask is one more word of the vocabulary, its last.
    """

    shuffled = False

    def __init__(self, segments: TokenStreams, seed: int) -> None:
        self.segments, self.seed = segments, seed
        self.num_words = segments.num_words + 1

    def __len__(self) -> int:
        return len(self.segments)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        words, _ = self.segments[index]
        generator = np.random.default_rng((self.seed, index))
        num_predicted = max(1, round(MASKED_FRAC * len(words)))
        chosen = torch.from_numpy(generator.permutation(len(words))[:num_predicted])
        action = torch.from_numpy(generator.random(num_predicted))
        other = torch.from_numpy(generator.integers(0, self.num_words - 1, num_predicted))
        targets = torch.full_like(words, NOT_PREDICTED)
        targets[chosen] = words[chosen]
        inputs = words.clone()
        inputs[chosen] = torch.where(action < 0.8, self.num_words - 1, torch.where(action < 0.9, other, words[chosen]))
        return inputs, targets


class Bert(nn.Module):
    """BERT with its head for masked words; the output layer shares the embedding's weights."""

    def __init__(self, sizes: Sizes, num_words: int) -> None:
        super().__init__()
        assert sizes.context is not None
        self.words = nn.Embedding(num_words, sizes.width)
        self.positions = nn.Embedding(sizes.context, sizes.width)
        self.types = nn.Embedding(NUM_TYPES, sizes.width)
        self.norm = nn.LayerNorm(sizes.width)
        self.dropout = nn.Dropout(DROPOUT)
        self.layers = nn.ModuleList(
            Layer(sizes, nn.GELU(), causal=False, cross=False, norm_first=False) for _ in range(sizes.num_layers))
        self.transform = nn.Sequential(nn.Linear(sizes.width, sizes.width), nn.GELU(), nn.LayerNorm(sizes.width))
        self.head = nn.Linear(sizes.width, num_words)
        self.head.weight = self.words.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, words: Tensor) -> Tensor:
        """Words (N, T) of one sentence to logits of the words at their places, (N, T, vocabulary)."""
        places = torch.arange(words.shape[1], device=words.device)
        x = self.words(words) + self.positions(places) + self.types(torch.zeros_like(words))
        x = self.dropout(self.norm(x))
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.transform(x))
        return logits


@dataclass(kw_only=True)
class BertWorkload(LanguageModelWorkload):
    """A bidirectional encoder that restores masked words: `tiny`, or BERT with 110 million parameters."""

    name: str = "bert"
    source: str = "Devlin et al., BERT: Pre-training of Deep Bidirectional Transformers, NAACL 2019"
    year: int | None = 2019
    default_batch_size: int = 8
    variants: tuple[str, ...] = tuple(SIZES)

    @property
    def sizes(self) -> Sizes:
        """Sizes of the variant."""
        return SIZES[self.variant]

    @property
    def generates(self) -> bool:
        """Return whether it generates text, which it does not: each word sees those after it."""
        return False

    def dataset(self, input_size: int, request: DataRequest) -> Any:
        """Return masked segments and their targets, both int64 (size,)."""
        num_words = self.sizes.num_words - 1  # the last is the mask
        return MaskedSegments(language_model_dataset(request, input_size=input_size, num_synthetic_words=num_words),
                              request.seed)

    def model(self, dataset: Any) -> Bert:
        """Return the network for the dataset's vocabulary."""
        return Bert(self.sizes, dataset.num_words)

    def forward(self, model: nn.Module, batch: Any) -> Any:
        """Return logits of the words, (batch, size, vocabulary)."""
        return model(batch[0])

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        """Return the cross-entropy of the masked words, in nats a word."""
        return functional.cross_entropy(outputs.flatten(0, 1), batch[1].flatten(), ignore_index=NOT_PREDICTED)

    def optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        """Return AdamW with the paper's learning rate, decaying matrices only; the paper warms the rate up."""
        (optimizer,) = super().optimizers(model)
        for group in optimizer.param_groups:
            group["lr"] = 1e-4
        return [optimizer]


WORKLOADS = [BertWorkload()]
