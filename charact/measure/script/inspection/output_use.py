"""Outputs of layers that nothing uses: their gradient is zero."""

import contextlib
from collections import defaultdict
from functools import partial
from typing import Any

import torch
from torch import nn

from charact.measure.script.inspection.tensor_contents import num_used_rows

_MOST_LAYERS = 20
_LEAST_DIMENSIONS = 3
"""Rows of outputs with fewer dimensions are samples: a loss may have no gradient for those that are learned."""


class OutputUse:
    """Counts the rows of linear layers' outputs for sequences, such as tokens, and those with a nonzero gradient.

    *Error*: a row whose gradient is zero by chance, or below the smallest number, counts as unused.
    """

    def __init__(self) -> None:
        self._rows: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        """Numbers of rows and of used rows by layer."""

    def watch(self, layer: str, module: nn.Module, output: Any) -> None:
        """Count the rows of a call's output in the backward that follows."""
        if (isinstance(module, nn.Linear) and type(output) is torch.Tensor and output.requires_grad
                and output.dim() >= _LEAST_DIMENSIONS):
            output.register_hook(partial(self._count, layer))  # type: ignore[no-untyped-call]

    def unused(self) -> list[dict[str, Any]]:
        """Return the layers with rows that nothing used, those with most rows first."""
        layers = sorted(self._rows, key=lambda layer: self._rows[layer][1] - self._rows[layer][0])
        return [{"layer": layer, "num_rows": self._rows[layer][0], "num_used_rows": self._rows[layer][1]}
                for layer in layers[:_MOST_LAYERS] if self._rows[layer][1] < self._rows[layer][0]]

    def _count(self, layer: str, gradient: torch.Tensor) -> None:
        with contextlib.suppress(Exception), torch.no_grad():  # subclasses of tensors may do anything
            rows = gradient.reshape(-1, gradient.shape[-1])
            counts = len(rows), num_used_rows(rows)
            self._rows[layer][0] += counts[0]
            self._rows[layer][1] += counts[1]
