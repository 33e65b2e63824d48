"""The layer of a dispatched operator."""

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class RunningLayer:
    """The layer of a model that is running, forward or backward.

    In the backward pass it is the layer of the forward operator: an autograd node has the sequence number at which it
    was created, and `_starts` has the layer that was running from each number on.
    """

    def __init__(self, model: nn.Module) -> None:
        self._layers: list[str | None] = [None]
        self._starts: list[tuple[int, str | None]] = []
        self._of_parameter = {id(parameter): name.rpartition(".")[0] or None
                              for name, parameter in model.named_parameters()}
        for name, module in model.named_modules():
            if name:
                module.register_forward_pre_hook(self._enter(name))
                module.register_forward_hook(self._leave, always_call=True)

    def name(self) -> str | None:
        """Return the qualified name of the layer; None outside any layer."""
        node = torch._C._current_autograd_node()
        if node is None:
            return self._layers[-1]
        if hasattr(node, "variable"):
            return self._of_parameter.get(id(node.variable))
        index = bisect_right(self._starts, node._sequence_nr(), key=lambda start: start[0]) - 1
        return self._starts[index][1] if index >= 0 else None

    @property
    def recomputes(self) -> bool:
        """Whether a layer's forward runs inside a backward, which recomputes activations."""
        return len(self._layers) > 1 and torch._C._current_autograd_node() is not None

    def forget(self) -> None:
        """Clear the data of previous iterations, whose nodes will not run backward again."""
        self._starts.clear()

    def _enter(self, name: str) -> Callable[..., None]:
        def enter(*_: Any) -> None:
            self._layers.append(name)
            self._note()

        return enter

    def _leave(self, *_: Any) -> None:
        self._layers.pop()
        self._note()

    def _note(self) -> None:
        self._starts.append((torch.autograd._get_sequence_nr(), self._layers[-1]))  # type: ignore[attr-defined]
