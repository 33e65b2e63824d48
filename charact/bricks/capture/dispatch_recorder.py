"""Capturing what runs: operators are recorded, on real tensors, as they are dispatched.

It runs in inference mode, in which PyTorch takes no operator apart before the recorder sees it: they come whole, as
torch.export gives them. Whether gradients are on is told all the same, since that is a switch of its own.

Not so under autocast, whose conversions are to be operators: some are inside of others, such as those of recurrent
layers, which it only reaches when they are taken apart. Then what is recorded is what comes below autograd.
"""

import contextlib
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary, WeakIdRef

from charact.bricks.capture.forward_pass import Program
from charact.bricks.capture.graph_builder import Draft
from charact.bricks.captured_graph import CaptureError
from charact.execution.case_outcome import one_line


@dataclass(frozen=True)
class Recording:
    """What one run showed."""

    draft: Draft
    outputs: list[Tensor]
    """What the program gave."""
    num_module_calls: int
    """Calls of the model's modules."""


def recorded(program: Program, *, training: bool, whole: bool = True, calls: bool = False) -> Recording:
    """What a program does as it runs; what depends on numbers is recorded for the numbers that there are.

    Args:
        program: is run once.
        training: whether gradients are on.
        whole: whether operators that are made of others stay whole.
        calls: whether to number the calls of modules that hold no others.

    Raises:
        CaptureError: the model fails, or calls what cannot be kept.
    """
    inputs = program.fresh_inputs()
    recorder = _Recorder(program, inputs, calls=calls)
    handles = [nn.modules.module.register_module_forward_pre_hook(recorder.enter),
               nn.modules.module.register_module_forward_hook(recorder.leave, always_call=True)]
    try:
        with (told_as_capture_error(), program.real_run(), torch.inference_mode(whole),
              torch.set_grad_enabled(training), recorder):
            outputs, others = program(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    draft = recorder.draft
    draft.outputs, draft.kept = [recorder.number(one) for one in outputs], [recorder.number(one) for one in others]
    return Recording(draft, outputs, recorder.num_module_calls)


@contextlib.contextmanager
def told_as_capture_error() -> Iterator[None]:
    """A model's own errors inside as one that names its line."""
    try:
        yield
    except CaptureError:
        raise
    except Exception as error:
        raise CaptureError(f"it fails{model_line(error)}: {one_line(error)}") from error


def model_line(error: BaseException) -> str:
    """Where in the model an error came from, in words; nothing where no line is anybody's but PyTorch's."""
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
        self.num_module_calls = -1  # the program around the model is one, too

    def enter(self, module: nn.Module, _: Any) -> None:
        """A module begins."""
        self.num_module_calls += 1
        call = 0
        if self._calls and next(module.children(), None) is None:
            self._num_leaf_calls += 1
            call = self._num_leaf_calls
        self._running.append((self._names.get(id(module), self._running[-1][0]), call))

    def leave(self, *_: Any) -> None:
        """It ends."""
        self._running.pop()

    def number(self, tensor: Tensor) -> int:
        """Value of a tensor; one that is not known is a leaf."""
        if tensor not in self._numbers and (known := self._by_place.get(_place(tensor))) is not None:
            self._numbers[tensor] = known[0]  # autograd gives views as other objects than it was given
        if tensor not in self._numbers:
            kind = self._kinds.get(id(tensor), "constant")
            kept = self._pristine.get(id(tensor))
            if kept is None:  # layers may write into it: what it holds now is what the first of them reads
                with torch.inference_mode(False):
                    kept = tensor if kind == "weight" else tensor.clone()
            self._numbers[tensor] = self.draft.leaf(kind, kept)
        found: int = self._numbers[tensor]
        return found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and write it down."""
        kwargs = kwargs or {}
        tree_map_only(Tensor, self.number, (args, kwargs))  # leaves are known as they were before it writes into them
        result = func(*args, **kwargs)
        module, call = self._running[-1]
        numbers = self.draft.add(func, args, kwargs, result, number=self.number, refers=Tensor, module=module,
                                 call=call)
        for made, number in zip(result if isinstance(result, (list, tuple)) else [result], numbers, strict=True):
            if number is not None:
                self._numbers[made] = number
                # The reference keeps the storage's address from being that of another.
                self._by_place[_place(made)] = number, _reference(made.untyped_storage())
                if not torch.is_grad_enabled():
                    self.draft.without_gradient.add(number)
        return result


def _place(tensor: Tensor) -> Any:
    """What two objects have in common that are one tensor to the model."""
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype
