"""How well a workload does its task, over the samples of an epoch: accuracy, perplexity, BLEU."""

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor


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
