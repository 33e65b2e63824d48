"""Metrics of a task over the samples of an epoch: accuracy, perplexity, BLEU."""

import importlib.util
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from torch import Tensor

from charact.datasets._common.vocabulary import Vocabulary
from charact.datasets.tatoeba import EOS, PADDING


class Metric(ABC):
    """Accumulates batches and returns one number. Each epoch and stage has its own metric.

    `update` must not wait for the device: it adds tensors, and `value` reads them.
    """

    name: str
    larger_is_better: bool
    validation_only: bool = False
    """Whether it is only computed in validation."""

    def unavailable(self) -> str | None:
        """Return why it is not available, with a remedy; None if it is."""
        return None

    @abstractmethod
    def update(self, outputs: Any, batch: Any) -> None:
        """Add a batch and the model's outputs."""

    @abstractmethod
    def value(self) -> float | None:
        """Return the value over all batches so far; None before the first."""


class _Mean(Metric):
    """A sum divided by a number of items, both on the device."""

    def __init__(self) -> None:
        self._sum: Tensor | None = None
        self._num_items: Tensor | int = 0

    def _add(self, amount: Tensor, num_items: Tensor | int) -> None:
        self._sum = amount if self._sum is None else self._sum + amount
        self._num_items = self._num_items + num_items

    def value(self) -> float | None:
        """Return the mean over all items; None before the first."""
        num_items = float(self._num_items)
        return None if self._sum is None or not num_items else float(self._sum) / num_items


class Accuracy(_Mean):
    """Share of samples whose largest output is that of the correct class."""

    larger_is_better = True

    def __init__(self, name: str = "accuracy") -> None:
        super().__init__()
        self.name = name

    def update(self, outputs: Any, batch: Any) -> None:
        """Add a batch: outputs (N, classes) or a tuple with a field `logits`; the labels are last in the batch."""
        logits, labels = getattr(outputs, "logits", outputs), batch[-1]
        self._add((logits.argmax(-1) == labels).sum(), len(labels))


class PixelAccuracy(_Mean):
    """Share of pixels whose largest output is that of the correct class."""

    name = "pixel_accuracy"
    larger_is_better = True

    def update(self, outputs: Any, batch: Any) -> None:
        """Add a batch: outputs (N, classes, H, W); the masks (N, H, W) are last in the batch."""
        masks = batch[-1]
        self._add((outputs.argmax(1) == masks).sum(), masks.numel())


class BinaryAccuracy(_Mean):
    """Share of samples whose logit has the sign of their label, 0 or 1."""

    name = "binary_accuracy"
    larger_is_better = True

    def update(self, outputs: Any, batch: Any) -> None:
        """Add a batch: logits (N,); the labels are last in the batch."""
        labels = batch[-1]
        self._add(((outputs > 0) == (labels > 0.5)).sum(), len(labels))


class Perplexity(_Mean):
    """Exponential of the mean loss of a word.

    `loss` returns the mean loss of the words in nats, for outputs and batch; targets are last in the batch.
    """

    name = "perplexity"
    larger_is_better = False

    def __init__(self, loss: Callable[[Any, Any], Tensor]) -> None:
        super().__init__()
        self._loss = loss

    def update(self, outputs: Any, batch: Any) -> None:
        """Add a batch; every word has the same weight."""
        num_words = batch[-1].numel()
        self._add(self._loss(outputs, batch).double() * num_words, num_words)

    def value(self) -> float | None:
        """Return the perplexity, at least 1; infinite if it exceeds the range of a float."""
        mean = super().value()
        try:
            return None if mean is None else math.exp(mean)
        except OverflowError:
            return math.inf


class TokenAccuracy(_Mean):
    """Share of positions with the correct word, without padding."""

    name = "token_accuracy"
    larger_is_better = True

    def update(self, outputs: Any, batch: Any) -> None:
        """Add a batch: outputs (N, T, words), and targets (N, T), last in the batch."""
        targets = batch[-1]
        counted = targets != PADDING
        self._add(((outputs.argmax(-1) == targets) & counted).sum(), counted.sum())


class Bleu(Metric):
    """Corpus BLEU of sentences against one reference translation each, computed by sacrebleu.

    Words are those of the vocabulary, without further tokenization. The hypothesis is the most likely word at each
    position up to the first end mark, so the model must generate it without seeing the targets.
    """

    name = "bleu"
    larger_is_better = True
    validation_only = True

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._batches: list[tuple[Tensor, Tensor]] = []

    def unavailable(self) -> str | None:
        """Return what to install: sacrebleu is an optional extra."""
        return None if importlib.util.find_spec("sacrebleu") else "install charact[bleu]"

    def update(self, outputs: Any, batch: Any) -> None:
        """Store a batch: outputs, a score for each word of the vocabulary (N, T, words), and targets (N, T)."""
        self._batches.append((outputs.argmax(-1), batch[-1]))

    def value(self) -> float | None:
        """Return BLEU from 0 to 100."""
        if not self._batches:
            return None
        from sacrebleu.metrics.bleu import BLEU

        written, targets = ([self._sentence(row) for batch in batches for row in batch.tolist()]
                            for batches in zip(*self._batches, strict=True))
        # `force` suppresses a warning about tokenized text, which is intended here.
        return float(BLEU(tokenize="none", force=True).corpus_score(written, [targets]).score)

    def _sentence(self, numbers: list[int]) -> str:
        end = numbers.index(EOS) if EOS in numbers else len(numbers)
        return " ".join(self._vocabulary.decode(numbers[:end]))
