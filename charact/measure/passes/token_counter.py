"""Number of tokens that a workload's model reads, and of the padding among them."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from charact.execution.case import Case
from charact.execution.loop import Step


class TokenCounter:
    """Counts tokens and padding of batches, outside of timed iterations.

    The counts of padding stay on the device until `facts`, so that the host does not wait for it.

    *Error*: of batches whose gradients are accumulated, the last one of each iteration counts for all of them.
    """

    def __init__(self, case: Case) -> None:
        self._workload, self._mode, self._num_batches = case.workload, case.mode, case.accumulate
        self._padding_index = None if case.mode == "decode" else case.workload.padding_index
        self._num_positions = 0
        self._num_padding: Tensor | int = 0

    def indices(self, step: Step) -> list[Tensor]:
        """Return the tokens of an iteration, for `add`; of a generation, one for each request, or the prompts.

        A batch without text need not be kept for it.
        """
        if self._mode == "decode":
            return [step.outputs]
        tokens = self._workload.tokens(step.batch)
        return tokens[:1] if self._mode == "prefill" else tokens

    def add(self, indices: Sequence[Tensor]) -> None:
        """Count the tokens of an iteration."""
        for tensor in indices:
            self._num_positions += self._num_batches * tensor.numel()
            if self._padding_index is not None:
                self._num_padding = self._num_padding + (tensor == self._padding_index).sum()

    def facts(self) -> dict[str, Any]:
        """Return the facts `num_tokens` and `num_padding` of the timing pass; none if the model reads no text."""
        if not self._num_positions:
            return {}
        if self._padding_index is None:
            return {"num_tokens": self._num_positions}
        num_padding = self._num_batches * int(self._num_padding)
        return {"num_tokens": self._num_positions - num_padding, "num_padding": num_padding}
