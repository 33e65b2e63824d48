"""Recording of operators on real tensors, as PyTorch dispatches them.

The model runs in inference mode, in which PyTorch does not decompose operators before the recorder sees them, so they
match those of torch.export. The gradient mode is a separate switch and is still visible.

Under autocast the model does not run in inference mode: some casts are inside composite operators, such as recurrent
layers, and autocast reaches them only if these are decomposed. The recorder then sees operators below autograd.
"""

import contextlib
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary, WeakIdRef

from charact.bricks.capture.draft import Draft
from charact.bricks.capture.sources import Program
from charact.bricks.captured_graph import CaptureError
from charact.execution.case_outcome import one_line


@dataclass(frozen=True)
class Recording:
    """Operators and outputs of one recorded run."""

    draft: Draft
    outputs: list[Tensor]
    """Outputs of the program."""
    num_module_calls: int
    """Number of calls of the model's modules."""


def recorded(program: Program, *, training: bool, whole: bool = True, calls: bool = False) -> Recording:
    """Record one run of a program; data-dependent control flow is recorded for this run's data.

    Args:
        program: the program.
        training: whether gradients are on.
        whole: whether composite operators stay whole.
        calls: whether to index the calls of modules without children.

    Raises:
        CaptureError: the model fails, or calls an operator that cannot be stored.
    """
    inputs = program.fresh_inputs()
    recorder = _Recorder(program, inputs, calls=calls)
    handles = [nn.modules.module.register_module_forward_pre_hook(recorder.enter),
               nn.modules.module.register_module_forward_hook(recorder.leave, always_call=True)]
    try:
        with (as_capture_error(), program.real_run(), torch.inference_mode(whole),
              torch.set_grad_enabled(training), recorder):
            outputs, others = program(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    draft = recorder.draft
    draft.outputs, draft.kept = [recorder.index_of(one) for one in outputs], [recorder.index_of(one) for one in others]
    return Recording(draft, outputs, recorder.num_module_calls)


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

    def __init__(self, program: Program, inputs: list[Tensor], *, calls: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.draft = Draft()
        self._calls = calls
        self._numbers: Any = WeakIdKeyDictionary(ref_type=WeakIdRef)
        self._by_place: dict[Any, tuple[int, Any]] = {}
        self._kinds = {id(tensor): "weight" for tensor in program.model.parameters()}
        self._kinds |= {id(tensor): "buffer" for tensor in program.model.buffers()}
        self._kinds |= {id(tensor): "input" for tensor in inputs}
        self._pristine = {id(tensor): kept for tensor, kept in zip(inputs, program.inputs, strict=True)}
        self._names = {id(module): name for name, module in program.model.named_modules()}
        self._running = [("", 0)]
        self._num_leaf_calls = 0
        self.num_module_calls = -1  # the enclosing Program is a module, too

    def enter(self, module: nn.Module, _: Any) -> None:
        """Record that a module begins."""
        self.num_module_calls += 1
        call = 0
        if self._calls and next(module.children(), None) is None:
            self._num_leaf_calls += 1
            call = self._num_leaf_calls
        self._running.append((self._names.get(id(module), self._running[-1][0]), call))

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
        """Run and record an operator."""
        kwargs = kwargs or {}
        tree_map_only(Tensor, self.index_of, (args, kwargs))  # before the call, which may write into leaves
        result = func(*args, **kwargs)
        module, call = self._running[-1]
        numbers = self.draft.add(func, args, kwargs, result, index_of=self.index_of, value_type=Tensor, module=module,
                                 call=call)
        for made, number in zip(result if isinstance(result, (list, tuple)) else [result], numbers, strict=True):
            if number is not None:
                self._numbers[made] = number
                # The reference prevents that another storage gets the same address.
                self._by_place[_place(made)] = number, _reference(made.untyped_storage())
                if not torch.is_grad_enabled():
                    self.draft.without_gradient.add(number)
        return result


def _place(tensor: Tensor) -> Any:
    """Return a key that is equal for two Python objects of one tensor."""
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype


_REMEDY = "which bricks cannot represent: cut it with --mode infer, or disable that"


def check_gradients(program: Program) -> None:
    """Run a training program once and check that bricks can represent its backward pass.

    Raises:
        CaptureError: the model has a custom `autograd.Function` or saved-tensor hooks, such as those of
            `torch.utils.checkpoint`; or it fails.
    """
    watch = _SavedTensors()
    with as_capture_error(), program.real_run(), torch.enable_grad(), watch:
        (loss,), _ = program(*program.fresh_inputs())
    name = _own_function(loss)
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


def _own_function(loss: Tensor) -> str | None:
    """Return the name of a custom `autograd.Function` in a loss's graph, or None."""
    left: list[Any] = [loss.grad_fn]
    seen: set[Any] = set()
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, BackwardCFunction):
            return type(node).__name__.removesuffix("Backward")
        left += [following for following, _ in node.next_functions]
    return None
