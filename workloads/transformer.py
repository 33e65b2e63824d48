"""Transformer: the original encoder-decoder model for translation.

Source: Vaswani et al., "Attention Is All You Need", NeurIPS 2017, section 3 and table 3: normalization after each
sublayer, sinusoidal positions, output layer tied to the target embedding.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from charact.datasets._samples.translation_pairs import translation_dataset
from charact.datasets.tatoeba import PADDING, SOS
from charact.workload import DataRequest, Generator, Workload
from charact.workload.key_value_cache import KINDS, KeyValueCache
from charact.workload.metrics import Metric, TokenAccuracy

from ._attention import DROPOUT, KeysAndValues, Layer, Sizes

SIZES = {
    "base": Sizes(width=512, num_heads=8, num_layers=6, num_words=37_000),
    "small": Sizes(width=256, num_heads=4, num_layers=3, num_words=37_000),
}


class Translator(nn.Module):
    """The original transformer; the output layer shares the target embedding's weights.

    Source and target have separate vocabularies of words; the paper shares one vocabulary of subwords.
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
        """Return logits (N, T, vocabulary) of the target words, with teacher forcing.

        Source padding is masked. Target padding needs no mask: it follows the words, and attention is causal.

        Args:
            sources: (N, T) words of the source sentences.
            targets: (N, T) words to predict.
        """
        memory, mask = self.encode(sources)
        before = functional.pad(targets[:, :-1], (1, 0), value=SOS)
        return self.decode(before, [memory] * len(self.decoder), mask)

    def encode(self, sources: Tensor) -> tuple[Tensor, Tensor]:
        """Words (N, T) to the memory (N, T, width), and the mask (N, 1, 1, T) that is true where there is a word."""
        mask = (sources != PADDING)[:, None, None, :]
        memory = self._embed(sources, self.sources)
        for layer in self.encoder:
            memory = layer(memory, mask)
        return memory, mask

    def decode(self, words: Tensor, memories: Sequence[Tensor | KeysAndValues], mask: Tensor,
               cache: KeyValueCache | None = None) -> Tensor:
        """Words (N, T), which follow those in the cache, to logits of the next ones, (N, T, vocabulary).

        `memories` has for each layer the memory, or its keys and values.
        """
        first = 0 if cache is None else cache.length
        x = self._embed(words, self.targets, first)
        for index, (layer, memory) in enumerate(zip(self.decoder, memories, strict=True)):
            x = layer(x, mask, memory, None if cache is None else partial(cache.extend, index))
        if cache is not None:
            cache.advance(words.shape[1])
        logits: Tensor = self.head(x)
        return logits

    def _embed(self, words: Tensor, embedding: nn.Module, first: int = 0) -> Tensor:
        positions = self.positions[first:first + words.shape[1]]
        embedded: Tensor = self.dropout(embedding(words) * math.sqrt(self.width) + positions)
        return embedded


class TranslationGenerator(Generator):
    """Translation: keys and values of the sources are kept, and of the words written so far."""

    def __init__(self, model: Any, cache: KeyValueCache) -> None:
        self._model, self._cache = model, cache
        self._memories: list[KeysAndValues] = []
        self._mask: Any = None

    def prefill(self, batch: Any) -> Tensor:
        """See `Generator`: encode the sources (N, T), and read the start mark."""
        self._cache.clear()
        memory, self._mask = self._model.encode(batch[0])
        self._memories = [layer.cross_attention.keys_and_values(memory) for layer in self._model.decoder]
        logits = self.decode(torch.full_like(batch[0][:, 0], SOS))
        self._cache.keep()
        return logits

    def decode(self, words: Tensor) -> Tensor:
        """See `Generator`."""
        logits: Tensor = self._model.decode(words[:, None], self._memories, self._mask, self._cache)
        return logits[:, -1]

    def go_to(self, num_words: int) -> None:
        """See `Generator`."""
        self._cache.go_to(num_words)

    def state(self) -> list[Tensor]:
        """Return all keys and values."""
        return [*self._cache.tensors(), *(each for pair in self._memories for each in pair)]


def sinusoids(length: int, width: int) -> Tensor:
    """Return position encodings (length, width): alternating sines and cosines, wavelengths 2π to 10,000 · 2π."""
    frequencies = 10_000.0 ** (-torch.arange(0, width, 2) / width)
    angles = torch.arange(length)[:, None] * frequencies
    return torch.stack((angles.sin(), angles.cos()), dim=2).flatten(1)


@dataclass(kw_only=True)
class TransformerWorkload(Workload):
    """An encoder-decoder translator with teacher forcing; inference scores given translations, it generates none."""

    name: str = "transformer"
    source: str = "Vaswani et al., Attention Is All You Need, NeurIPS 2017"
    year: int | None = 2017
    input_kind: Literal["image", "sequence"] = "sequence"
    default_batch_size: int = 8
    padding_index: int | None = PADDING
    variants: tuple[str, ...] = tuple(SIZES)

    @property
    def default_input_size(self) -> int:
        """Return the maximum sentence length in words, with the end mark: near the mean of the paper's corpus."""
        return 32

    @property
    def smallest_input_size(self) -> int:
        """Return 2: a word and the end mark."""
        return 2

    def dataset(self, input_size: int, request: DataRequest) -> Any:
        """Return pairs of sentences, each int64 (size,), with an end mark and padding."""
        num_words = SIZES[self.variant].num_words
        return translation_dataset(request, input_size=input_size, num_source_words=num_words,
                                   num_target_words=num_words)

    def model(self, dataset: Any) -> Translator:
        """Return the network for the dataset's vocabularies and longest sentence."""
        return Translator(SIZES[self.variant], len(dataset.source_vocabulary), len(dataset.target_vocabulary),
                          dataset.sentence_length)

    def forward(self, model: nn.Module, batch: Any) -> Any:
        """Return logits of the target's words, (batch, size, vocabulary)."""
        return model(*batch)

    def tokens(self, batch: Any) -> list[Tensor]:
        """Return the words of both sentences."""
        return [batch[0], batch[1]]

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        """Return the cross-entropy with label smoothing of 0.1, without padding."""
        return functional.cross_entropy(outputs.flatten(0, 1), batch[1].flatten(), ignore_index=PADDING,
                                        label_smoothing=0.1)

    def optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        """Return Adam with the paper's betas and epsilon, and a constant learning rate of 1e-4.

        The paper's learning rate rises to 7e-4 and then falls.
        """
        return [torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)]

    def generator(self, model: nn.Module, output_size: int, cache: str) -> Generator:
        """Return a translation that keeps keys and values, and that may be longer than the sentences of the data."""
        assert isinstance(model, Translator)
        if output_size > len(model.positions):
            model.positions = sinusoids(output_size, model.width).to(model.positions)
        return TranslationGenerator(model, KINDS[cache](output_size))

    def metrics(self, dataset: Any) -> list[Metric]:
        """Return the share of correctly predicted words, with teacher forcing."""
        return [TokenAccuracy()]


WORKLOADS = [TransformerWorkload()]
