"""How well a workload does its task, over the samples of an epoch: accuracy, perplexity, BLEU."""

import importlib.util
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from torch import Tensor

from charact.datasets._common.vocabulary import Vocabulary
from charact.datasets.tatoeba import EOS, PADDING


class Metric(ABC):
    """Takes batch after batch, then tells one number. A metric of its own for each epoch and stage.

    `update` must not wait for the device: it adds up tensors, and `value` reads them.
    """

    name: str
    larger_is_better: bool
    validation_only: bool = False
    """Whether it is not told of batches that are trained on."""

    def unavailable(self) -> str | None:
        """Why it cannot be told here, with the remedy; None where it can."""
        return None

    @abstractmethod
    def update(self, outputs: Any, batch: Any) -> None:
        """Take in a batch and what the model made of it."""

    @abstractmethod
    def value(self) -> float | None:
        """The number over all batches so far; None before the first."""


class _Mean(Metric):
    """A sum over a number of items, both kept on the device."""

    def __init__(self) -> None:
        self._sum: Tensor | None = None
        self._num_items: Tensor | int = 0

    def _add(self, amount: Tensor, num_items: Tensor | int) -> None:
        self._sum = amount if self._sum is None else self._sum + amount
        self._num_items = self._num_items + num_items

    def _mean(self) -> float | None:
        num_items = float(self._num_items)
        return None if self._sum is None or not num_items else float(self._sum) / num_items


class Accuracy(_Mean):
    """Share of samples whose largest output is that of the right class."""

    larger_is_better = True

    def __init__(self, name: str = "accuracy") -> None:
        super().__init__()
        self.name = name

    def update(self, outputs: Any, batch: Any) -> None:
        """Count a batch: outputs (N, classes) or a tuple with them in a field `logits`; the labels end the batch."""
        logits, labels = getattr(outputs, "logits", outputs), batch[-1]
        self._add((logits.argmax(-1) == labels).sum(), len(labels))

    def value(self) -> float | None:
        """Share from 0 to 1."""
        return self._mean()


class Perplexity(_Mean):
    """Exponential of the mean loss of a word.

    Args:
        loss: gives the mean loss of a batch's words in nats, from outputs and batch; the targets end the batch.
    """

    name = "perplexity"
    larger_is_better = False

    def __init__(self, loss: Callable[[Any, Any], Tensor]) -> None:
        super().__init__()
        self._loss = loss

    def update(self, outputs: Any, batch: Any) -> None:
        """Count a batch, every word alike."""
        num_words = batch[-1].numel()
        self._add(self._loss(outputs, batch).double() * num_words, num_words)

    def value(self) -> float | None:
        """From 1 up; infinite where it is beyond what a float holds."""
        mean = self._mean()
        try:
            return None if mean is None else math.exp(mean)
        except OverflowError:
            return math.inf


class TokenAccuracy(_Mean):
    """Share of places, padding left out, that hold the right word."""

    name = "token_accuracy"
    larger_is_better = True

    def update(self, outputs: Any, batch: Any) -> None:
        """Count a batch: outputs (N, T, words), and targets (N, T) that end the batch."""
        targets = batch[-1]
        counted = targets != PADDING
        self._add(((outputs.argmax(-1) == targets) & counted).sum(), counted.sum())

    def value(self) -> float | None:
        """Share from 0 to 1."""
        return self._mean()


class Bleu(Metric):
    """BLEU of whole sentences against one translation each, as sacrebleu computes it over a corpus.

    The words are those of the vocabulary and are not split further. What is scored is each place's likeliest word up to
    the first end mark, so the model must have written without seeing the targets.

    Args:
        vocabulary: of the targets.
    """

    name = "bleu"
    larger_is_better = True
    validation_only = True

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._batches: list[tuple[Tensor, Tensor]] = []

    def unavailable(self) -> str | None:
        """What to install: sacrebleu is an optional extra."""
        return None if importlib.util.find_spec("sacrebleu") else "install charact[bleu]"

    def update(self, outputs: Any, batch: Any) -> None:
        """Keep a batch: outputs (N, T, words), and targets (N, T) that end the batch."""
        self._batches.append((outputs.argmax(-1), batch[-1]))

    def value(self) -> float | None:
        """From 0 to 100."""
        if not self._batches:
            return None
        from sacrebleu.metrics.bleu import BLEU

        written, targets = ([self._sentence(row) for batch in batches for row in batch.tolist()]
                            for batches in zip(*self._batches, strict=True))
        # `force` keeps it from warning of words that stand apart, which here they do on purpose.
        return float(BLEU(tokenize="none", force=True).corpus_score(written, [targets]).score)

    def _sentence(self, numbers: list[int]) -> str:
        end = numbers.index(EOS) if EOS in numbers else len(numbers)
        return " ".join(self._vocabulary.decode(numbers[:end]))
