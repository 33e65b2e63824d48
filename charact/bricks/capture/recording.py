"""Recording of a model's operators into a draft, on real tensors as PyTorch dispatches them.

The model runs in inference mode, in which PyTorch does not decompose operators before the recorder sees them. The
gradient mode is a separate switch and is still visible.

Under autocast the model does not run in inference mode: some casts are inside composite operators, such as recurrent
layers, and autocast reaches them only if these are decomposed. The recorder then sees operators below autograd.
"""

import contextlib
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map_only, tree_unflatten
from torch.utils.weak import WeakIdKeyDictionary, WeakIdRef

from charact.bricks.aten import encoded_call, operator_name
from charact.bricks.suite.captured_graph import CaptureError, Layer
from charact.execution.case import Case
from charact.execution.case_outcome import one_line
from charact.execution.loop import Loop
from charact.execution.precision import PRECISIONS


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

    def build(self, device: torch.device | str | None = None) -> "Program":
        """Build model, batch and optimizers, deterministically."""
        return Program(self.case if device is None else replace(self.case, device=torch.device(device)))


class Program(nn.Module):
    """A model, one batch and optimizers on a device, as a module whose inputs and outputs are tensors."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        loop = Loop(case)
        try:
            self.batch = loop.next_batch()
        finally:
            loop.close()
        leaves, self._spec = tree_flatten(self.batch)
        self.case, self.workload, self.optimizers = case, loop.workload, loop.optimizers
        self.model = loop.model
        self._places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self._leaves: list[Any] = leaves
        self.inputs: list[Tensor] = [leaves[place] for place in self._places]
        """Tensors of the batch."""
        self.train(case.training)

    def forward(self, *inputs: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return the loss and the model's outputs in training, else the model's outputs and an empty list."""
        leaves = list(self._leaves)
        for place, tensor in zip(self._places, inputs, strict=True):
            leaves[place] = tensor
        spec: TreeSpec = self._spec
        batch = tree_unflatten(leaves, spec)
        self.workload.start_epoch()
        dtype = PRECISIONS[self.case.precision].autocast
        with contextlib.nullcontext() if dtype is None else torch.autocast(self.case.device.type, dtype=dtype):
            outputs = self.workload.forward(self.model, batch)
            if not self.case.training:
                return _tensors(outputs), []
            loss = self.workload.loss(outputs, batch)
        return [loss], _tensors(outputs)

    def fresh_inputs(self) -> list[Tensor]:
        """Return copies of the batch's tensors, since a model may write into them."""
        return [tensor.clone() for tensor in self.inputs]

    @contextlib.contextmanager
    def real_run(self) -> Iterator[None]:
        """Seed the random numbers for a run of the model, and restore its buffers afterwards."""
        device = self.case.device
        before = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(self.case.data.seed)
            try:
                yield
            finally:
                with torch.no_grad():
                    for buffer, values in before:
                        buffer.copy_(values)
                self.workload.start_epoch()


def _tensors(outputs: Any) -> list[Tensor]:
    """Return the tensors in outputs, each once."""
    found: dict[int, Tensor] = {}
    for leaf in tree_leaves(outputs):
        if isinstance(leaf, Tensor):
            found.setdefault(id(leaf), leaf)
        elif is_dataclass(leaf):
            found.update((id(each), each) for one in fields(leaf) for each in _tensors(getattr(leaf, one.name)))
    return list(found.values())


SAME = frozenset(["aten.detach.default", "aten.detach_.default", "aten.alias.default", "aten.lift_fresh.default"])
"""Operators that return their input; they matter only for gradients."""


@dataclass
class Draft:
    """Layers in execution order. A layer's output may be read only by the model's code, or never."""

    layers: list[Layer] = field(default_factory=list)
    kinds: dict[int, str] = field(default_factory=dict)
    """Kind of each leaf."""
    tensors: dict[int, Tensor] = field(default_factory=dict)
    """The leaves' tensors."""
    outputs: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    """Values that the program computes in addition to the outputs; the layers that compute them are kept."""
    without_gradient: set[int] = field(default_factory=set)
    """Values computed while gradients were off."""
    num_values: int = 0
    num_module_calls: int = -1
    """Number of calls of the model's modules; the enclosing `Program` is a module, too."""

    def new_value(self) -> int:
        """Return the next value index."""
        self.num_values += 1
        return self.num_values - 1

    def leaf(self, kind: str, tensor: Tensor) -> int:
        """Add a leaf and return its value index."""
        value = self.new_value()
        self.kinds[value], self.tensors[value] = kind, tensor
        return value

    def live_layers(self) -> list[Layer]:
        """Return the layers without those of `SAME` whose output nobody reads."""
        read = {*self.outputs, *self.kept}
        live = []
        for layer in reversed(self.layers):
            if layer.operator not in SAME or not read.isdisjoint(layer.outputs):
                live.append(layer)
                read.update(layer.inputs)
        return live[::-1]


def recorded(program: Program) -> tuple[Draft, list[Tensor]]:
    """Record one run of a program, and return its outputs, too.

    Data-dependent control flow is recorded for this run's data.

    Raises:
        CaptureError: the model fails, or calls an operator that cannot be stored.
    """
    inputs, whole = program.fresh_inputs(), PRECISIONS[program.case.precision].autocast is None
    recorder = _Recorder(program, inputs)
    handles = [nn.modules.module.register_module_forward_pre_hook(recorder.enter),
               nn.modules.module.register_module_forward_hook(recorder.leave, always_call=True)]
    try:
        with (as_capture_error(), program.real_run(), torch.inference_mode(whole),
              torch.set_grad_enabled(program.case.training), recorder):
            outputs, others = program(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    draft = recorder.draft
    draft.outputs, draft.kept = ([recorder.index_of(tensor) for tensor in tensors] for tensors in (outputs, others))
    return draft, outputs


@contextlib.contextmanager
def as_capture_error() -> Iterator[None]:
    """Convert errors of the model's code to a `CaptureError` that names the line."""
    try:
        yield
    except CaptureError:
        raise
    except Exception as error:
        raise CaptureError(f"it fails{model_line(error)}: {one_line(error)}") from error


def model_line(error: BaseException) -> str:
    """Return text that locates an error in the model's code, or "" if only PyTorch's code is on the stack."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__)
              if "/torch/" not in frame.filename and "/charact/bricks/" not in frame.filename]
    if not frames:
        return ""
    last = frames[-1]
    return f" in line {last.lineno} of {last.filename.rpartition('/')[2]} ({last.line})"


_reference: Any = StorageWeakRef


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds a layer to a draft for each operator."""

    def __init__(self, program: Program, inputs: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.draft = Draft()
        self._numbers: Any = WeakIdKeyDictionary(ref_type=WeakIdRef)
        self._by_place: dict[Any, tuple[int, Any]] = {}
        self._kinds = {id(tensor): "weight" for tensor in program.model.parameters()}
        self._kinds |= {id(tensor): "buffer" for tensor in program.model.buffers()}
        self._kinds |= {id(tensor): "input" for tensor in inputs}
        self._pristine = {id(tensor): kept for tensor, kept in zip(inputs, program.inputs, strict=True)}
        self._names = {id(module): name for name, module in program.model.named_modules()}
        self._running = [""]

    def enter(self, module: nn.Module, _: Any) -> None:
        """Record that a module begins."""
        self.draft.num_module_calls += 1
        self._running.append(self._names.get(id(module), self._running[-1]))

    def leave(self, *_: Any) -> None:
        """Record that a module ends."""
        self._running.pop()

    def index_of(self, tensor: Tensor) -> int:
        """Return the value index of a tensor; add an unknown tensor as a leaf."""
        if tensor not in self._numbers and (known := self._by_place.get(_place(tensor))) is not None:
            self._numbers[tensor] = known[0]  # autograd returns views as new Python objects
        if tensor not in self._numbers:
            kind = self._kinds.get(id(tensor), "constant")
            kept = self._pristine.get(id(tensor))
            if kept is None:  # clone: layers may write into it later
                with torch.inference_mode(False):
                    kept = tensor if kind == "weight" else tensor.clone()
            self._numbers[tensor] = self.draft.leaf(kind, kept)
        found: int = self._numbers[tensor]
        return found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and add its layer; assertions are skipped.

        Raises:
            CaptureError: the operator or an argument cannot be stored.
        """
        kwargs = kwargs or {}
        tree_map_only(Tensor, self.index_of, (args, kwargs))  # before the call, which may write into leaves
        result = func(*args, **kwargs)
        name = operator_name(func)
        try:
            stored = encoded_call(func, args, kwargs, self.index_of)
        except CaptureError as error:
            raise CaptureError(f"its operator {name} {error}") from error
        several = isinstance(result, (list, tuple))
        outputs: list[int | None] = []
        for made in result if several else [result]:
            value = self.draft.new_value() if isinstance(made, Tensor) else None
            outputs.append(value)
            if value is not None:
                self._numbers[made] = value
                # The reference prevents another storage from getting the same address.
                self._by_place[_place(made)] = value, _reference(made.untyped_storage())
                if not torch.is_grad_enabled():
                    self.draft.without_gradient.add(value)
        if not name.startswith("aten._assert"):
            self.draft.layers.append(Layer(name, *stored, tuple(outputs), several, self._running[-1]))
        return result


def _place(tensor: Tensor) -> Any:
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype


_REMEDY = "which bricks cannot represent: use --mode infer, or disable it in the model"


def check_gradients(program: Program) -> None:
    """Run a training program once and check that bricks can represent its backward pass.

    Raises:
        CaptureError: the model has a custom `autograd.Function` or saved-tensor hooks, such as those of
            `torch.utils.checkpoint`; or it fails.
    """
    watch = _SavedTensors()
    with as_capture_error(), program.real_run(), torch.enable_grad(), watch:
        (loss,), _ = program(*program.fresh_inputs())
    name, left, seen = None, [loss.grad_fn], set[Any]()
    while left and name is None:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            left += [following for following, _ in node.next_functions]
            if isinstance(node, BackwardCFunction):
                name = type(node).__name__.removesuffix("Backward")
    if watch.packed or name == "CheckpointFunction":
        raise CaptureError("it changes how tensors are saved for the backward pass, as torch.utils.checkpoint does, "
                           + _REMEDY)
    if name is not None:
        raise CaptureError(f"its autograd.Function {name} has a custom backward pass, {_REMEDY}")


class _SavedTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that records whether saved-tensor hooks are active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.packed = False
        self._top_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
        """Returns the innermost hooks on saved tensors; None before PyTorch 2.7, where hooks are not noticed."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and check for saved-tensor hooks."""
        self.packed |= self._top_hooks is not None and self._top_hooks(True) is not None
        return func(*args, **(kwargs or {}))
