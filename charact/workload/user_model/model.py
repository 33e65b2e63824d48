"""A workload around a model of the user's own: any importable `nn.Module`, fed with made-up inputs of its spec."""

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
from charact.workload.user_model.import_target import call_arguments, chosen, imported, kind_of
from charact.workload.user_model.input_spec import InputSpec
from charact.workload.user_model.loss import Loss, default_loss, named_loss

NUM_SAMPLES = 50_000
"""As many as the made-up pictures of the built-in workloads."""

_OPTIMIZERS = sorted(name for name, value in vars(torch.optim).items()
                     if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and name != "Optimizer")


class MadeUpInputs(Dataset[tuple[Tensor, ...]]):
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
        """A batch: each input of the spec, joined along its batch axis."""
        columns = zip(*samples, strict=True)
        return [torch.stack(column, one.batch_axis) for column, one in zip(columns, self.spec.tensors, strict=True)]


@dataclass(kw_only=True)
class OwnModel(Workload):
    """A model that someone else wrote."""

    input_kind: Literal["image", "sequence", "other"] = "other"
    default_batch_size: int = 8
    factory: Callable[..., Any]
    arguments: dict[str, Any]
    """What the factory is called with."""
    spec: InputSpec
    loss_of: Loss
    optimizer_class: type[torch.optim.Optimizer]
    learning_rate: float
    loss_name: str | None = None
    """What `loss_of` was asked for by; None for the default."""
    _loss_used: str | None = field(default=None, init=False)

    @property
    def default_input_size(self) -> int:
        """None.

        Raises:
            UserError: always, since only the user knows what S may be.
        """
        raise UserError(f"{self.name} has no default input size: give what S stands for with --input-sizes")

    @property
    def smallest_input_size(self) -> int:
        """1: what is too small for the model, the model says."""
        return 1

    def dataset(self, input_size: int, request: DataRequest) -> MadeUpInputs:
        """Samples of the spec: a tuple of its tensors, without their batch axes."""
        return MadeUpInputs(self.spec, input_size, request.seed)

    def model(self, dataset: Dataset[Any]) -> nn.Module:
        """What the factory makes.

        Raises:
            TypeError: it is no model.
        """
        made = self.factory(**self.arguments)
        if not isinstance(made, nn.Module):
            raise TypeError(f"{self.source} gave a {type(made).__name__}, not a torch.nn.Module")
        return made

    def forward(self, model: nn.Module, batch: Any) -> Any:
        """Whatever the model gives for the spec's inputs."""
        inputs = list(zip(self.spec.inputs, batch, strict=False))  # after them stands the target
        by_name = {one.name: tensor for one, tensor in inputs if one.name is not None}
        return model(*(tensor for one, tensor in inputs if one.name is None), **by_name)

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        """The loss asked for; what it was is noted for `facts`."""
        loss, self._loss_used = self.loss_of(outputs, None if self.spec.target is None else batch[-1])
        return loss

    def optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        """The optimizer asked for, over all parameters."""
        make: Callable[..., torch.optim.Optimizer] = self.optimizer_class
        return [make(model.parameters(), lr=self.learning_rate)]

    def facts(self) -> dict[str, Any]:
        """What was run: inputs, arguments, and the loss and optimizer of a training."""
        trained = {"loss": self._loss_used,
                   "optimizer": f"{self.optimizer_class.__name__}, learning rate {self.learning_rate:g}"}
        made = {"model": self.source, "arguments": {name: repr(value) for name, value in self.arguments.items()},
                "inputs": self.spec.text}
        return made if self._loss_used is None else made | trained


def own_model(target: str, arguments: str, spec: InputSpec, loss: str | None, optimizer: str, learning_rate: float
              ) -> OwnModel:
    """Workload of a model that is named as `package.module:factory`.

    Args:
        target: where the model class, or a function that makes a model, is; the working directory is importable.
        arguments: what it is called with, as between the parentheses of a call.
        spec: what the model is fed.
        loss: name of a function in `torch.nn.functional`, or `package.module:function` of outputs and target.
        optimizer: name of a class in `torch.optim`.
        learning_rate: of the optimizer.

    Raises:
        UserError: a name is wrong, or what it names is not what it should be.
    """
    factory = imported(target, "--model")
    if isinstance(factory, nn.Module):
        raise UserError(f"--model: {target} is a model already: name the class or a function that makes one")
    if not callable(factory) or (isinstance(factory, type) and not issubclass(factory, nn.Module)):
        raise UserError(f"--model: {target} is a {kind_of(factory)}, neither a torch.nn.Module class nor a function "
                        "that makes a model")
    pictures = any(one.axes.count("S") > 1 for one in spec.inputs)
    words = any("S" in one.axes and one.type != "float32" for one in spec.inputs)
    return OwnModel(
        name=target.rpartition(":")[2].rpartition(".")[2], source=target, factory=factory,
        input_kind="image" if pictures else "sequence" if words else "other",
        arguments=call_arguments(arguments, "--model-args"), spec=spec,
        loss_of=default_loss if loss is None else named_loss(loss, spec),
        optimizer_class=getattr(torch.optim, chosen(optimizer, _OPTIMIZERS, "--optimizer")),
        learning_rate=learning_rate, loss_name=loss)
