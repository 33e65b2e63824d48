"""Base class of language models: text streams, cross-entropy of the next words, AdamW."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from charact.datasets._samples.text_streams import language_model_dataset
from charact.workload import DataRequest, DecoderGenerator, Generator, RecomputingGenerator, Workload
from charact.workload.key_value_cache import NoCache
from charact.workload.metrics import Metric, Perplexity


class TextSizes(Protocol):
    """Sizes that determine the data."""

    @property
    def num_words(self) -> int:
        """Size of the vocabulary of synthetic text."""

    @property
    def context(self) -> int | None:
        """Longest sequence in words; None without a limit."""


@dataclass(kw_only=True)
class LanguageModelWorkload(Workload):
    """A language model that predicts each next word of a text."""

    input_kind: Literal["image", "sequence"] = "sequence"
    default_batch_size: int = 4

    @property
    @abstractmethod
    def sizes(self) -> TextSizes:
        """Sizes of the variant."""

    @property
    def window(self) -> int | None:
        """Number of words that a word attends to, itself included; None for all before it."""
        return None

    @property
    def default_input_size(self) -> int:
        """Return 128 words."""
        return 128

    @property
    def smallest_input_size(self) -> int:
        """Return 1: one word, from which the next is predicted."""
        return 1

    @property
    def longest_input_size(self) -> int | None:
        """Return the number of positions that the model has."""
        return self.sizes.context

    @property
    def caches(self) -> tuple[str, ...]:
        """Return those of all workloads, and `none`."""
        return *super().caches, "none"

    def dataset(self, input_size: int, request: DataRequest) -> Any:
        """Return segments of streams, (int64 (size,), int64 (size,)), in batches (size, batch)."""
        return language_model_dataset(request, input_size=input_size, num_synthetic_words=self.sizes.num_words)

    def forward(self, model: nn.Module, batch: Any) -> Any:
        """Return logits of the next words, (batch, size, vocabulary)."""
        return model(batch[0].T)

    def tokens(self, batch: Any) -> list[Tensor]:
        """Return the words, without the next ones that are predicted."""
        return [batch[0]]

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        """Return the cross-entropy of the next words, in nats a word; its exponential is the perplexity."""
        return functional.cross_entropy(outputs.flatten(0, 1), batch[1].T.flatten())

    def optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        """Return AdamW with the settings of GPT, decaying matrices only: not all successors published theirs."""
        matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
        others = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
        groups = [{"params": matrices, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
        return [torch.optim.AdamW(groups, lr=2.5e-4)]

    def generator(self, model: nn.Module, output_size: int, cache: str) -> Generator:
        """Return a generation that keeps keys and values, or none; the model has the argument `cache`."""
        if cache == "none":
            return RecomputingGenerator(lambda words: model(words, NoCache())[:, -1], lambda batch: batch[0].T)
        return DecoderGenerator(model, output_size, cache, lambda batch: batch[0].T, self.window)

    def clip_gradients(self, model: nn.Module) -> None:
        """Clip the norm of all gradients together to 1, as in GPT's code."""
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    def metrics(self, dataset: Any) -> list[Metric]:
        """Return the perplexity."""
        return [Perplexity(self.loss)]
