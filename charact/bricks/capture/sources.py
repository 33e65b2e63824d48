"""Sources: configurations of models that are built on demand, to be captured or timed."""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from charact.core.errors import UserError
from charact.datasets._common.request import DataRequest
from charact.execution.case import Case, cases_of
from charact.execution.loop import Loop
from charact.execution.precision import PRECISIONS
from charact.workload.base import Workload
from charact.workload.registry import find_workload
from charact.workload.user_model.input_spec import parse_input_spec
from charact.workload.user_model.model import own_model

SAVED_SUFFIX = ".pt2"


@dataclass(frozen=True)
class Built:
    """A built source: a model, one batch and optimizers on a device."""

    case: Case
    workload: Workload
    model: nn.Module
    """The model, in the source's mode (training or evaluation)."""
    batch: Any
    optimizers: list[torch.optim.Optimizer]

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the autocast context of the precision, or a null context."""
        dtype = PRECISIONS[self.case.precision].autocast
        return contextlib.nullcontext() if dtype is None else torch.autocast(self.case.device.type, dtype=dtype)


@dataclass(frozen=True)
class Source:
    """One configuration of a model."""

    case: Case
    asked_as: str
    """Name given by the user: a workload, `package.module:factory`, or a file."""

    @property
    def id(self) -> str:
        """Return the case identifier without the device: `resnet50-224-b8-train-fp32`."""
        return replace(self.case, device=torch.device("cpu")).id.removesuffix("-cpu")

    def build(self, device: torch.device | str | None = None) -> Built:
        """Build model, batch and optimizers, deterministically.

        Args:
            device: by default the device of the source's case.
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
    """Return the configurations of models: the product of sizes, batch sizes, modes and precisions.

    Imported models and files get a variant that is a hash of their location and arguments, to distinguish models of
    the same name.

    Args:
        names: workloads, `package.module:factory` of importable models, or `.pt2` files of `torch.export.save`.
        input_sizes: by default the workload's; for imported models, the value of S in the spec; not for files.
        batch_sizes: by default the workload's; a file has the batch size of its export.
        modes: `train` and `infer`; files support only `infer`.
        precisions: of `schema.PRECISIONS`. Files run in the dtypes of their export, under the name pure-bf16 if all
            weights are bfloat16, else fp32.
        variant: variant of the workloads.
        input_spec: inputs of imported models, see `charact.workload.user_model.input_spec`.
        model_args: arguments of the factory of imported models.
        loss: training loss of imported models.
        optimizer: class of `torch.optim` for imported models.
        learning_rate: of the optimizer.
        seed: random seed.
        device: device of the capture.

    Raises:
        UserError: the model does not exist, or the input size is too small.
    """
    found: list[Source] = []
    for name in names:
        if name.endswith(SAVED_SUFFIX):
            found += _saved(name, input_sizes, batch_sizes, modes, precisions, seed, device)
            continue
        if ":" in name:
            if input_spec is None:
                raise UserError(f"{name} needs --input-spec, the shape of its inputs, such as --input-spec 3xSxS")
            workload: Workload = _with_unique_variant(
                own_model(name, model_args, parse_input_spec(input_spec), loss, optimizer, learning_rate
                          ).prepare(variant), name, model_args, input_spec, loss, optimizer, learning_rate)
        else:
            workload = find_workload(name).prepare(variant)
        for case in cases_of(workload, input_sizes, batch_sizes, modes, precisions, device=torch.device(device),
                             data=DataRequest(seed=seed)):
            case.check_size()
            found.append(Source(case, name))
    return found


def _saved(name: str, input_sizes: Sequence[int], batch_sizes: Sequence[int], modes: Sequence[str],
           precisions: Sequence[str], seed: int, device: str) -> list[Source]:
    from charact.bricks.capture.exported_workload import saved_program

    program = saved_program(Path(name))
    workload = _with_unique_variant(program.prepare(), str(Path(name).absolute()))
    size, batch = workload.default_input_size, workload.default_batch_size
    precision = "pure-bf16" if program.weights_types == {torch.bfloat16} else "fp32"
    for option, asked, there in (("--input-sizes", input_sizes, size), ("--batch-sizes", batch_sizes, batch),
                                 ("--mode", modes, "infer"), ("--precision", set(precisions) - {"fp32"}, precision)):
        if set(asked) - {there}:
            raise UserError(f"{name} was exported with {option} {there}, which is fixed: leave {option} out, or name "
                            "the model that it was exported from")
    return [Source(Case(workload, size, batch, "infer", precision, torch.device(device), DataRequest(seed=seed)), name)]


def _with_unique_variant(workload: Workload, *what: Any) -> Workload:
    """Return an external workload with a hash of `what` as its variant."""
    digest = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:6]
    return replace(workload, variants=(workload.variants[0], digest), variant=digest)


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
        self.train(built.case.training)

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
            if not self._built.case.training:
                return _tensors(outputs), []
            loss = self._built.workload.loss(outputs, batch)
        return [loss], _tensors(outputs)

    def fresh_inputs(self) -> list[Tensor]:
        """Return copies of the batch's tensors, since a model may write into them."""
        return [tensor.clone() for tensor in self.inputs]

    @contextlib.contextmanager
    def real_run(self) -> Iterator[None]:
        """Seed the random numbers for a run of the model, and restore its buffers afterwards."""
        device = self._built.case.device
        before = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(self._built.case.data.seed)
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
