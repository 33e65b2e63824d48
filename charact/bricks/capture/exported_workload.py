"""Workload of an exported model: runs the operators that `torch.export.save` wrote, one after another."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from charact.bricks.aten import call
from charact.bricks.capture.exported_file import SavedModel, read_saved
from charact.bricks.suite.captured_graph import Layer
from charact.core.errors import UserError
from charact.datasets._common.request import DataRequest
from charact.workload.base import Workload

_NUM_SAMPLES = 50_000


class Replay(nn.Module):
    """A module that runs the layers of a saved model."""

    def __init__(self, saved: SavedModel) -> None:
        super().__init__()
        self._saved = saved
        self._last_reader: dict[int, int] = {}
        for place, layer in enumerate(saved.layers):
            self._last_reader.update(dict.fromkeys(layer.inputs, place))
        for value, (kind, tensor) in saved.leaves.items():
            if kind == "weight":
                self.register_parameter(_name(value), nn.Parameter(tensor, requires_grad=tensor.is_floating_point()))
            elif kind != "input":
                self.register_buffer(_name(value), tensor)

    def forward(self, *inputs: Tensor) -> list[Tensor]:
        """Return the model's output tensors."""
        saved = self._saved
        values = {value: getattr(self, _name(value)) for value, (kind, _) in saved.leaves.items() if kind != "input"}
        values.update(zip(saved.inputs, inputs, strict=True))
        device = inputs[0].device
        for place, layer in enumerate(saved.layers):
            for value, made in zip(layer.outputs, call(layer, values, device), strict=True):
                if value is not None:
                    values[value] = made
            self._release(layer, place, values)
        return [values[value] for value in saved.outputs]

    def _release(self, layer: Layer, place: int, values: dict[int, Tensor]) -> None:
        """Delete values after their last use."""
        for value in {*layer.inputs, *(made for made in layer.outputs if made is not None)}:
            if self._last_reader.get(value, place) == place and value not in self._saved.outputs:
                del values[value]


class _Examples(Dataset[int]):
    """A data set that repeats the example inputs of the export as its batch."""

    shuffled = False

    def __init__(self, inputs: list[Tensor]) -> None:
        self._inputs = inputs

    def __len__(self) -> int:
        return _NUM_SAMPLES

    def __getitem__(self, index: int) -> int:
        return index

    def collate(self, samples: list[int]) -> list[Tensor]:
        """Return the whole example batch, which cannot be split into samples."""
        return [tensor.clone() for tensor in self._inputs]


@dataclass(kw_only=True)
class SavedProgram(Workload):
    """An exported model, for inference only, with the inputs and batch size of its export."""

    input_kind: Literal["image", "sequence", "other"] = "other"
    keeps_types = True
    saved: SavedModel

    @property
    def weights_types(self) -> set[torch.dtype]:
        """Return the floating-point dtypes of its weights."""
        return {tensor.dtype for kind, tensor in self.saved.leaves.values()
                if kind == "weight" and tensor.is_floating_point()}

    @property
    def default_input_size(self) -> int:
        """Return the length of the first input's last axis."""
        shape = self.saved.leaves[self.saved.inputs[0]][1].shape
        return shape[-1] if len(shape) > 1 else 1

    @property
    def smallest_input_size(self) -> int:
        """Return the input size of the example, the only possible one."""
        return self.default_input_size

    def dataset(self, input_size: int, request: DataRequest) -> Dataset[Any]:
        """Return a data set that repeats the example inputs."""
        return _Examples([self.saved.leaves[value][1] for value in self.saved.inputs])

    def model(self, dataset: Dataset[Any]) -> nn.Module:
        """Return a module that runs the operators with their weights."""
        return Replay(self.saved)

    def forward(self, model: nn.Module, batch: Any) -> Any:
        """Return the outputs, a list of tensors."""
        return model(*batch)

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        """Raise an error: exported programs have no loss."""
        raise UserError(f"{self.name} is an exported program, which has no loss: use --mode infer")

    def optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        """Raise an error: exported programs are not trained."""
        raise UserError(f"{self.name} is an exported program, which cannot be trained: use --mode infer")


def saved_program(path: Path) -> SavedProgram:
    """Return the workload of an exported model, named after its file."""
    saved = read_saved(path)
    if not saved.inputs:
        raise UserError(f"{path} takes no tensors: export a model with inputs")
    first = saved.leaves[saved.inputs[0]][1]
    return SavedProgram(name=re.sub(r"[^\w.]", "_", path.stem), source=path.name, saved=saved,
                        default_batch_size=first.shape[0] if first.dim() else 1)


def _name(value: int) -> str:
    return f"value_{value}"
