"""Workload for any importable `nn.Module`, with synthetic inputs from its spec."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from charact.core.errors import UserError
from charact.datasets._common.request import DataRequest
from charact.workload.base import Workload
from charact.workload.generation import Generator
from charact.workload.user_model.generation import CACHES, check_inputs, model_generator
from charact.workload.user_model.import_target import call_arguments, chosen, imported, kind_of
from charact.workload.user_model.input_spec import InputSpec
from charact.workload.user_model.loss import Loss, default_loss, named_loss

NUM_SAMPLES = 50_000
"""Number of samples, as in the synthetic images of the built-in workloads."""

_OPTIMIZERS = sorted(name for name, value in vars(torch.optim).items()
                     if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and name != "Optimizer")


class SyntheticInputs(Dataset[tuple[Tensor, ...]]):
    """Samples of a spec, drawn when they are fetched: the same for the same seed and index in every process."""

    def __init__(self, spec: InputSpec, input_size: int, seed: int) -> None:
        self.spec, self.input_size, self.seed = spec, input_size, seed

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        generator = np.random.default_rng((self.seed, index))
        return tuple(torch.from_numpy(one.sample(generator, self.input_size)) for one in self.spec.tensors)

    def collate(self, samples: list[tuple[Tensor, ...]]) -> list[Tensor]:
        """Return a batch: each input of the spec, joined along its batch axis."""
        columns = zip(*samples, strict=True)
        return [torch.stack(column, one.batch_axis) for column, one in zip(columns, self.spec.tensors, strict=True)]


@dataclass(kw_only=True)
class OwnModel(Workload):
    """A model of the user."""

    input_kind: Literal["image", "sequence", "other"] = "other"
    default_batch_size: int = 8
    factory: Callable[..., Any]
    arguments: dict[str, Any]
    """Arguments of the factory."""
    spec: InputSpec
    loss_of: Loss
    optimizer_class: type[torch.optim.Optimizer]
    learning_rate: float
    loss_name: str | None = None
    """Name of the requested loss; None for the default."""
    _loss_used: str | None = field(default=None, init=False)

    @property
    def default_input_size(self) -> int:
        """Raise a `UserError`: a user's model has no default input size."""
        raise UserError(f"{self.name} has no default input size: give values of S with --input-sizes")

    @property
    def smallest_input_size(self) -> int:
        """1: the model itself rejects smaller inputs."""
        return 1

    @property
    def generates(self) -> bool:
        """True: only the model itself shows whether it generates.

        Raises:
            UserError: its inputs do not suit a generation.
        """
        check_inputs(self.name, self.spec)
        return True

    @property
    def caches(self) -> tuple[str, ...]:
        """Return those of a user's model."""
        return CACHES

    def dataset(self, input_size: int, request: DataRequest) -> SyntheticInputs:
        """Return samples of the spec: a tuple of its tensors, without their batch axes."""
        return SyntheticInputs(self.spec, input_size, request.seed)

    def model(self, dataset: Dataset[Any]) -> nn.Module:
        """Return the factory's model.

        Raises:
            TypeError: it is not a model.
        """
        made = self.factory(**self.arguments)
        if not isinstance(made, nn.Module):
            raise TypeError(f"{self.source} returned a {type(made).__name__}, not a torch.nn.Module")
        return made

    def forward(self, model: nn.Module, batch: Any) -> Any:
        """Return the model's outputs for the spec's inputs."""
        inputs = list(zip(self.spec.inputs, batch, strict=False))  # the target follows them
        by_name = {one.name: tensor for one, tensor in inputs if one.name is not None}
        return model(*(tensor for one, tensor in inputs if one.name is None), **by_name)

    def tokens(self, batch: Any) -> list[Tensor]:
        """Return the integer inputs of length S that have more than two values, the others are masks or types."""
        return [tensor for one, tensor in zip(self.spec.inputs, batch, strict=False) if one.is_text]

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        """Return the requested loss; its description is stored for `facts`."""
        loss, self._loss_used = self.loss_of(outputs, None if self.spec.target is None else batch[-1])
        return loss

    def optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        """Return the requested optimizer, over all parameters."""
        make: Callable[..., torch.optim.Optimizer] = self.optimizer_class
        return [make(model.parameters(), lr=self.learning_rate)]

    def generator(self, model: nn.Module, output_size: int, cache: str) -> Generator:
        """Return a generation with the model, if it is one in Hugging Face's manner."""
        return model_generator(model, self.name, self.spec, output_size, cache)

    def facts(self) -> dict[str, Any]:
        """Return the model's source, inputs and arguments, and the loss and optimizer of a training."""
        trained = {"loss": self._loss_used,
                   "optimizer": f"{self.optimizer_class.__name__}, learning rate {self.learning_rate:g}"}
        made = {"model": self.source, "arguments": {name: repr(value) for name, value in self.arguments.items()},
                "inputs": self.spec.text}
        return made if self._loss_used is None else made | trained


def own_model(target: str, arguments: str, spec: InputSpec, loss: str | None, optimizer: str, learning_rate: float
              ) -> OwnModel:
    """Return the workload of a model named as `package.module:factory`.

    The working directory is importable. `arguments` are those between the parentheses of a call; `loss` is the name of
    a function in `torch.nn.functional`, or `package.module:function` of outputs and target.
    """
    factory = imported(target, "--model")
    if isinstance(factory, nn.Module):
        raise UserError(f"--model: {target} is a model already: name the class or a function that returns one")
    if not callable(factory) or (isinstance(factory, type) and not issubclass(factory, nn.Module)):
        raise UserError(f"--model: {target} is a {kind_of(factory)}, neither a torch.nn.Module class nor a function "
                        "that returns a model")
    is_image = any(one.axes.count("S") > 1 for one in spec.inputs)
    words = any("S" in one.axes and one.type != "float32" for one in spec.inputs)
    return OwnModel(
        name=target.rpartition(":")[2].rpartition(".")[2], source=target, factory=factory,
        input_kind="image" if is_image else "sequence" if words else "other",
        arguments=call_arguments(arguments, "--model-args"), spec=spec,
        loss_of=default_loss if loss is None else named_loss(loss, spec),
        optimizer_class=getattr(torch.optim, chosen(optimizer, _OPTIMIZERS, "--optimizer")),
        learning_rate=learning_rate, loss_name=loss)
