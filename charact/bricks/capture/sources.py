"""What is captured and compared: configurations of models, by name, which come to life when they are needed."""

import contextlib
import hashlib
import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from charact.core.errors import UserError
from charact.datasets._common.request import DataRequest
from charact.execution.case import Case
from charact.execution.loop import Loop
from charact.execution.precision import PRECISIONS
from charact.workload.base import Workload
from charact.workload.registry import find_workload
from charact.workload.user_model.input_spec import parse_input_spec
from charact.workload.user_model.model import own_model

SAVED_SUFFIX = ".pt2"


@dataclass(frozen=True)
class Built:
    """A source brought to life: a model and one batch, on a device."""

    case: Case
    workload: Workload
    model: nn.Module
    """In training mode or evaluation mode, as the source asks."""
    batch: Any
    optimizers: list[torch.optim.Optimizer]

    @property
    def training(self) -> bool:
        """Whether it trains; else it infers."""
        return self.case.training

    @property
    def device(self) -> torch.device:
        """Where model and batch are."""
        return self.case.device

    @property
    def seed(self) -> int:
        """What random numbers begin with."""
        return self.case.data.seed

    def forward(self) -> Any:
        """The model's outputs for the batch."""
        return self.workload.forward(self.model, self.batch)

    def loss(self, outputs: Any) -> Tensor:
        """Scalar loss of the outputs."""
        return self.workload.loss(outputs, self.batch)

    def autocast(self) -> AbstractContextManager[Any]:
        """Autocast of the precision; nothing where it has none."""
        dtype = PRECISIONS[self.case.precision].autocast
        return contextlib.nullcontext() if dtype is None else torch.autocast(self.device.type, dtype=dtype)


@dataclass(frozen=True)
class Source:
    """One configuration of a model."""

    case: Case
    asked_as: str
    """What the user named: a workload, `package.module:factory`, or a file."""

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.case.workload.name

    @property
    def variant(self) -> str:
        """Form of the model."""
        return self.case.workload.variant

    @property
    def input_size(self) -> int:
        """Side length in pixels or length of a sequence."""
        return self.case.input_size

    @property
    def batch_size(self) -> int:
        """Samples in the batch."""
        return self.case.batch_size

    @property
    def mode(self) -> str:
        """`train` or `infer`."""
        return self.case.mode

    @property
    def precision(self) -> str:
        """One of `schema.PRECISIONS`."""
        return self.case.precision

    @property
    def coordinates(self) -> dict[str, Any]:
        """What tells the configuration apart from others, but for the device."""
        return {"workload": self.name, "variant": self.variant, "input_kind": self.case.workload.input_kind,
                "input_size": self.input_size, "batch_size": self.batch_size, "mode": self.mode,
                "precision": self.precision, "source": self.case.workload.source}

    def case_id(self, device: torch.device | str) -> str:
        """Identifier of the case that it is on a device, as in records: `resnet50-224-b8-train-fp32-cpu`."""
        return replace(self.case, device=torch.device(device)).id

    @property
    def id(self) -> str:
        """That identifier without the device."""
        return self.case_id("cpu").removesuffix("-cpu")

    def build(self, device: torch.device | str | None = None) -> Built:
        """Make model, batch and optimizers, the same each time.

        Args:
            device: where; by default where the source is to be captured.
        """
        case = self.case if device is None else replace(self.case, device=torch.device(device))
        loop = Loop(case)
        try:
            batch = loop.next_batch()
        finally:
            loop.close()
        return Built(case, loop.workload, loop.model, batch, loop.optimizers)


def sources_of(names: Sequence[str], *, input_sizes: Sequence[int] = (), batch_sizes: Sequence[int] = (),
               modes: Sequence[str] = ("infer",), precisions: Sequence[str] = ("fp32",), variant: str | None = None,
               input_spec: str | None = None, model_args: str = "", loss: str | None = None, optimizer: str = "SGD",
               learning_rate: float = 0.01, seed: int = 0, device: str = "cpu") -> list[Source]:
    """Configurations of models: every size, batch size, mode and precision of each.

    Models that are imported, and files, are told from others of their name by their variant: a hash of where they are
    and of what they are made with.

    Args:
        names: workloads, `package.module:factory` of models that can be imported, `.pt2` files of `torch.export.save`.
        input_sizes: by default the workload's; of imported models what S stands for in the spec; not for files.
        batch_sizes: by default the workload's; a file has that which it was exported with.
        modes: `train` and `infer`; files only infer.
        precisions: of `schema.PRECISIONS`; files run in the types that they were exported in, whatever fp32 says:
            that is pure-bf16 where all their weights are bfloat16.
        variant: form of the workloads.
        input_spec: what imported models are fed, see `charact.workload.user_model.input_spec`.
        model_args: what they are called with.
        loss: theirs in training.
        optimizer: likewise, a class of `torch.optim`.
        learning_rate: of the optimizer.
        seed: of all that is random.
        device: where they are captured.

    Raises:
        UserError: there is no such model, or it is too small.
    """
    found: list[Source] = []
    for name in names:
        if name.endswith(SAVED_SUFFIX):
            found += _saved(name, input_sizes, batch_sizes, modes, precisions, seed, device)
            continue
        if ":" in name:
            if input_spec is None:
                raise UserError(f"{name} needs --input-spec, which tells what it is fed, as in --input-spec 3xSxS")
            workload: Workload = _told_apart(
                own_model(name, model_args, parse_input_spec(input_spec), loss, optimizer, learning_rate
                          ).prepare(variant), name, model_args, input_spec, loss, optimizer, learning_rate)
        else:
            workload = find_workload(name).prepare(variant)
        sizes = input_sizes or [workload.default_input_size]
        batches = batch_sizes or [workload.default_batch_size]
        for size, batch, mode, precision in product(sizes, batches, modes, precisions):
            case = Case(workload, size, batch, mode, precision, torch.device(device), DataRequest(seed=seed))
            case.check_size()
            found.append(Source(case, name))
    return found


def _saved(name: str, input_sizes: Sequence[int], batch_sizes: Sequence[int], modes: Sequence[str],
           precisions: Sequence[str], seed: int, device: str) -> list[Source]:
    from charact.bricks.capture.exported_workload import saved_program

    program = saved_program(Path(name))
    workload = _told_apart(program.prepare(), str(Path(name).absolute()))
    size, batch = workload.default_input_size, workload.default_batch_size
    precision = "pure-bf16" if program.weights_types == {torch.bfloat16} else "fp32"
    for option, asked, there in (("--input-sizes", input_sizes, size), ("--batch-sizes", batch_sizes, batch),
                                 ("--mode", modes, "infer"), ("--precision", set(precisions) - {"fp32"}, precision)):
        if set(asked) - {there}:
            raise UserError(f"{name} was exported once and for all with {option} {there}: leave {option} out, or name "
                            "the model that it was exported from")
    return [Source(Case(workload, size, batch, "infer", precision, torch.device(device), DataRequest(seed=seed)), name)]


def _told_apart(workload: Workload, *what: Any) -> Workload:
    """A model of someone else's, whose variant is a hash of what it is."""
    digest = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:6]
    return replace(workload, variants=(workload.variants[0], digest), variant=digest)
