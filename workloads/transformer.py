"""Transformer: an encoder and a decoder that translate, in the first transformer's form.

Source: Vaswani et al., "Attention Is All You Need", NeurIPS 2017, section 3 and table 3: normalization after each
part, sinusoidal positions, output layer tied to the target embedding.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from charact.datasets._samples.translation_pairs import translation_dataset
from charact.datasets.tatoeba import PADDING, SOS
from charact.workload import DataRequest, Workload
from charact.workload.metrics import Metric, TokenAccuracy

from ._attention import DROPOUT, Layer, Sizes

SIZES = {
    "base": Sizes(width=512, num_heads=8, num_layers=6, num_words=37_000),
    "small": Sizes(width=256, num_heads=4, num_layers=3, num_words=37_000),
}


class Translator(nn.Module):
    """The first transformer's form; the output layer shares the target embedding's weights.

    Source and target have vocabularies of their own, where the paper shares one of both languages' word pieces.
    """

    positions: Tensor

    def __init__(self, sizes: Sizes, num_source_words: int, num_target_words: int, length: int) -> None:
        super().__init__()
        self.width = sizes.width
        self.sources = nn.Embedding(num_source_words, sizes.width)
        self.targets = nn.Embedding(num_target_words, sizes.width)
        self.register_buffer("positions", sinusoids(length, sizes.width), persistent=False)
        self.dropout = nn.Dropout(DROPOUT)
        self.encoder, self.decoder = (
            nn.ModuleList(
                Layer(sizes, nn.ReLU(), causal=decodes, cross=decodes, norm_first=False)
                for _ in range(sizes.num_layers)
            )
            for decodes in (False, True)
        )
        self.head = nn.Linear(sizes.width, num_target_words, bias=False)
        for parameter in [*self.encoder.parameters(), *self.decoder.parameters()]:
            if parameter.dim() == 2:
                nn.init.xavier_uniform_(parameter)
        for embedding in (self.sources, self.targets):
            nn.init.normal_(embedding.weight, std=sizes.width**-0.5)
        self.head.weight = self.targets.weight

    def forward(self, sources: Tensor, targets: Tensor) -> Tensor:
        """Words (N, T) and those to predict (N, T) to logits (N, T, words): each place is given the true ones before.

        Padding of the source is not seen; that of the target comes after the words, which do not see it either.
        """
        mask = (sources != PADDING)[:, None, None, :]
        memory = self._embed(sources, self.sources)
        for layer in self.encoder:
            memory = layer(memory, mask)
        before = functional.pad(targets[:, :-1], (1, 0), value=SOS)
        x = self._embed(before, self.targets)
        for layer in self.decoder:
            x = layer(x, mask, memory)
        logits: Tensor = self.head(x)
        return logits

    def _embed(self, words: Tensor, embedding: nn.Module) -> Tensor:
        embedded: Tensor = self.dropout(embedding(words) * math.sqrt(self.width) + self.positions[: words.shape[1]])
        return embedded


def sinusoids(length: int, width: int) -> Tensor:
    """Sines and cosines of each place (length, width), in wavelengths from 2π to 10,000 · 2π; they alternate."""
    frequencies = 10_000.0 ** (-torch.arange(0, width, 2) / width)
    angles = torch.arange(length)[:, None] * frequencies
    return torch.stack((angles.sin(), angles.cos()), dim=2).flatten(1)


@dataclass(kw_only=True)
class TransformerWorkload(Workload):
    """An encoder-decoder translator that is given the true words before each; inference scores, it does not write."""

    name: str = "transformer"
    source: str = "Vaswani et al., Attention Is All You Need, NeurIPS 2017"
    input_kind: Literal["image", "sequence"] = "sequence"
    default_batch_size: int = 8
    variants: tuple[str, ...] = tuple(SIZES)

    @property
    def default_input_size(self) -> int:
        """Longest sentence in words, its end mark included: about the mean of the paper's corpus."""
        return 32

    @property
    def smallest_input_size(self) -> int:
        """A word and the end mark."""
        return 2

    def dataset(self, input_size: int, request: DataRequest) -> Any:
        """Return pairs of sentences, (int64 (size,), int64 (size,)), each with its end mark, padded."""
        num_words = SIZES[self.variant].num_words
        return translation_dataset(request, input_size=input_size, num_source_words=num_words,
                                   num_target_words=num_words)

    def model(self, dataset: Any) -> Translator:
        """Return the network for the dataset's vocabularies and longest sentence."""
        return Translator(SIZES[self.variant], len(dataset.source_vocabulary), len(dataset.target_vocabulary),
                          dataset.sentence_length)

    def forward(self, model: nn.Module, batch: Any) -> Any:
        """Return logits of the target's words, (batch, size, words)."""
        return model(*batch)

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        """Return the cross-entropy with labels smoothed by .1; padding does not count."""
        return functional.cross_entropy(outputs.flatten(0, 1), batch[1].flatten(), ignore_index=PADDING,
                                        label_smoothing=0.1)

    def optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        """Return Adam with the paper's moments; its rate rises to 7e-4 and falls, here it is constant at 1e-4."""
        return [torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)]

    def metrics(self, dataset: Any) -> list[Metric]:
        """Return the share of correct words, given the true ones before each."""
        return [TokenAccuracy()]


WORKLOADS = [TransformerWorkload()]
