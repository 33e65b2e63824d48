"""The captured program: one forward pass of a source (in training with its loss) as a function of tensors."""

import contextlib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from charact.bricks.capture.sources import Built


class Program(nn.Module):
    """A source as a module whose inputs and outputs are tensors.

    Args:
        built: the built source.
    """

    def __init__(self, built: Built) -> None:
        super().__init__()
        self.model = built.model
        self._built = built
        leaves, self._spec = tree_flatten(built.batch)
        self._places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self._leaves: list[Any] = leaves
        self.inputs: list[Tensor] = [leaves[place] for place in self._places]
        """Tensors of the batch."""
        self.train(built.training)

    def forward(self, *inputs: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return the loss and the model's outputs in training, else the model's outputs and an empty list."""
        leaves = list(self._leaves)
        for place, tensor in zip(self._places, inputs, strict=True):
            leaves[place] = tensor
        spec: TreeSpec = self._spec
        batch = tree_unflatten(leaves, spec)
        self._built.workload.start_epoch()
        with self._built.autocast():
            outputs = self._built.workload.forward(self.model, batch)
            if not self._built.training:
                return _tensors(outputs), []
            loss = self._built.workload.loss(outputs, batch)
        return [loss], _tensors(outputs)

    def fresh_inputs(self) -> list[Tensor]:
        """Return copies of the batch's tensors, since a model may write into them."""
        return [tensor.clone() for tensor in self.inputs]

    @contextlib.contextmanager
    def real_run(self) -> Iterator[None]:
        """Seed the random numbers for a run of the model, and restore its buffers afterwards."""
        device = self._built.device
        before = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(self._built.seed)
            try:
                yield
            finally:
                with torch.no_grad():
                    for buffer, values in before:
                        buffer.copy_(values)
                self._built.workload.start_epoch()


def _tensors(outputs: Any) -> list[Tensor]:
    """Return the tensors in outputs, each once."""
    found: dict[int, Tensor] = {}
    for leaf in tree_leaves(outputs):
        if isinstance(leaf, Tensor):
            found.setdefault(id(leaf), leaf)
        elif is_dataclass(leaf):
            found.update((id(each), each) for one in fields(leaf) for each in _tensors(getattr(leaf, one.name)))
    return list(found.values())
