"""Number of tokens that a workload's model reads, and of the padding among them."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from charact.execution.case import Case


class TokenCounter:
    """Counts tokens and padding of batches, outside of timed iterations.

    The counts of padding stay on the device until `facts`, so that the host does not wait for it.

    *Error*: of batches whose gradients are accumulated, the last one of each iteration counts for all of them.
    """

    def __init__(self, case: Case) -> None:
        self._workload, self._num_batches = case.workload, case.accumulate
        self._num_positions = 0
        self._num_padding: Tensor | int = 0

    def indices(self, batch: Any) -> list[Tensor]:
        """Return the tokens of a batch, for `add`. A batch without text need not be kept for it."""
        return self._workload.tokens(batch)

    def add(self, indices: Sequence[Tensor]) -> None:
        """Count the tokens of an iteration."""
        for tensor in indices:
            self._num_positions += self._num_batches * tensor.numel()
            if self._workload.padding_index is not None:
                self._num_padding = self._num_padding + (tensor == self._workload.padding_index).sum()

    def facts(self) -> dict[str, Any]:
        """Return the facts `num_tokens` and `num_padding` of the timing pass; none if the model reads no text."""
        if not self._num_positions:
            return {}
        if self._workload.padding_index is None:
            return {"num_tokens": self._num_positions}
        num_padding = self._num_batches * int(self._num_padding)
        return {"num_tokens": self._num_positions - num_padding, "num_padding": num_padding}
