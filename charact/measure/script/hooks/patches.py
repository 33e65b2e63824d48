"""Patches of PyTorch: each replaced function opens a span around the original.

No span opens while a compiler traces, in other threads, or where its kind may not open. The compiler treats
`torch.compiler.is_dynamo_compiling` as a constant, so the check breaks no graph.
"""

import gc
import inspect
import sys
from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import Any

from charact.measure.script.hooks.child_patches import ChildPatches
from charact.measure.script.hooks.compile_patches import CompilePatches
from charact.measure.script.hooks.functional_patches import FunctionalPatches
from charact.measure.script.hooks.import_hook import when_imported
from charact.measure.script.hooks.loader_patches import LoaderPatches
from charact.measure.script.hooks.method_patches import MethodPatches
from charact.measure.script.hooks.optimizer_patches import OptimizerPatches
from charact.measure.script.hooks.patch_context import PatchContext, subclasses
from charact.measure.script.program.frames import calling_place
from charact.measure.script.spans.recorder import ZEROED, Kind, SpanRecorder

COLLECTIVES = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_gather_single", "all_to_all",
    "all_to_all_single", "barrier", "broadcast", "broadcast_object_list", "gather", "isend", "irecv", "recv", "reduce",
    "reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor", "scatter", "send",
    "_broadcast_coalesced",  # buffers in the forward of DistributedDataParallel
)
"""Functions of torch.distributed that exchange data; some releases lack some."""

_FUNCTIONAL_COLLECTIVES = "torch.distributed._functional_collectives"


class Patches:
    """All patches, which can be removed again."""

    def __init__(self, recorder: SpanRecorder, on_owner: Callable[[Any, int], None],
                 on_span_end: Callable[[Kind, int], None]) -> None:
        self.context = PatchContext(recorder, on_owner, on_span_end)
        self._loaders = LoaderPatches(self.context)
        self._optimizers = OptimizerPatches(self.context)
        self._compiling = CompilePatches(self.context)
        self.children = ChildPatches(self.context)
        self.methods = MethodPatches(self.context)
        self._functional = FunctionalPatches(self.context, lambda: self.context.events.any_optimizer)
        self._stop_waiting: Callable[[], None] = lambda: None
        """Cancels the patches of a module that is not imported yet."""

    def install(self) -> None:
        """Install the patches; functions that the program has already imported by name are not recorded.

        Existing models, loaders and optimizers are patched, too.
        """
        import torch
        from torch.nn import functional
        from torch.nn.modules.loss import _Loss

        self.context.is_compiling = torch.compiler.is_dynamo_compiling
        self._is_grad_enabled, self._is_anomaly_enabled = torch.is_grad_enabled, torch.is_anomaly_enabled
        self._loss_class, self._tensor_class = _Loss, torch.Tensor
        replace = self.context.replacements.wrap
        backward = partial(self.context.span, Kind.BACKWARD, notify=Kind.BACKWARD)
        replace(torch.nn.Module, "__call__", self._module_call)
        self._patch_own_calls(torch.nn.Module)
        for name in dir(functional):
            if (name.endswith("_loss") or "cross_entropy" in name or name == "kl_div") and not name.startswith("_"):
                replace(functional, name, self.context.span(Kind.LOSS))
        replace(torch.autograd, "backward", backward(on_open=self._note_backward))
        replace(torch.autograd, "grad", backward(on_open=self._count_backward))
        replace(torch.nn.Module, "zero_grad", self.context.span(Kind.UPDATE, ZEROED))
        for name in ("to", "cuda"):
            replace(torch.Tensor, name, self._copy)
        if torch.distributed.is_available():
            for name in filter(partial(hasattr, torch.distributed), COLLECTIVES):
                replace(torch.distributed, name, self.context.span(Kind.COMMUNICATION))
            replace(torch.distributed.Work, "wait", self.context.span(Kind.COMMUNICATION))
            self._stop_waiting = when_imported(_FUNCTIONAL_COLLECTIVES, lambda: replace(
                sys.modules[_FUNCTIONAL_COLLECTIVES], "wait_tensor", self.context.span(Kind.COMMUNICATION)))
        self.context.events.tensor_class = torch.Tensor
        self.context.events.index_types = torch.int64, torch.int32
        gc.callbacks.append(self.context.events.collection)
        self._loaders.install()
        self.methods.install()
        self._functional.install()
        self.children.install()
        self._optimizers.install()
        self._compiling.install()

    def remove(self) -> None:
        """Restore all functions, except those that the program has replaced since."""
        self._stop_waiting()
        self._forget_collections()
        self.context.replacements.undo()
        self._compiling.remove()

    def stop_in_child(self) -> None:
        """Record nothing any more in a forked child, but the times of a loader's worker."""
        self._forget_collections()
        self._loaders.in_child = True

    def notes(self, *, last: bool = False) -> list[dict[str, Any]]:
        """Return notes of the events besides spans since the last call; `last` if watching has ended."""
        return [*self.context.events.notes(last=last), *self._loaders.notes()]

    def _forget_collections(self) -> None:
        if self.context.events.collection in gc.callbacks:
            gc.callbacks.remove(self.context.events.collection)

    def _module_call(self, original: Any) -> Any:
        """Wrap a module's call: a forward or a loss. It is the most frequent call, so the cheapest checks are first."""
        recorder, is_compiling, grad_enabled, thread = (
            self.context.recorder, self.context.is_compiling, self._is_grad_enabled, self.context.thread)
        methods, note_inputs = self.methods, self.context.events.inputs
        forward = Kind.FORWARD  # a variable takes a fifth of the time of an attribute of an enumeration

        def wrapper(module: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or forward not in recorder.may_open or get_ident() != thread:
                return original(module, *args, **kwargs)
            if isinstance(module, self._loss_class):
                kind, owner = Kind.LOSS, 0
            else:
                if recorder.idle and (caller := sys._getframe(1)).f_code not in methods.seen and methods.find(caller):
                    return original(module, *args, **kwargs)
                kind, owner = forward, self.context.owner_id(module)
                note_inputs(owner, module, args, kwargs)
            recorder.enter(kind, owner, grad=grad_enabled(), training=module.training)
            outputs = None
            try:
                outputs = original(module, *args, **kwargs)
            finally:
                if kind is forward and isinstance(outputs, self._tensor_class) and outputs.dim() == 0 \
                        and not any(True for _ in module.parameters()):  # a criterion
                    recorder.leave_as(Kind.LOSS)
                else:
                    recorder.leave()
            if kind is forward and recorder.idle:
                self.context.on_span_end(kind, owner)
            return outputs

        return wrapper

    def _count_backward(self, *_: Any) -> None:
        self.context.events.backward(self._is_anomaly_enabled())

    def _note_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._count_backward()
        events = self.context.events
        if events.graph_place is None and (kwargs.get("create_graph") or args[3:4] == (True,)):
            events.graph_place = calling_place()

    def _patch_own_calls(self, base: Any) -> None:
        """Patch modules that define their own `__call__`, also in classes that are defined later."""
        def watch_own(kind: Any) -> None:
            own = inspect.getattr_static(kind, "__call__")
            if inspect.isfunction(own) and not kind.__module__.startswith("torch."):
                self.context.replacements.wrap(kind, "__call__", self._module_call)

        def init_subclass(kind: Any, /, **options: Any) -> None:
            super(base, kind).__init_subclass__(**options)
            watch_own(kind)

        for kind in subclasses(base):
            watch_own(kind)
        self.context.replacements.put(base, "__init_subclass__", classmethod(init_subclass))

    def _copy(self, original: Any) -> Any:
        """Wrap the conversion of a tensor, and record only copies from the host to a device."""
        recorder = self.context.recorder

        def wrapper(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.context.may_open(Kind.COPY) or tensor.device.type != "cpu":
                return original(tensor, *args, **kwargs)
            recorder.enter(Kind.COPY)
            moved = tensor
            try:
                moved = original(tensor, *args, **kwargs)
            finally:
                if moved.device.type == "cpu":
                    recorder.drop()
                else:
                    recorder.leave()
            return moved

        return wrapper
