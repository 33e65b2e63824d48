"""What of PyTorch is watched: each function is replaced by one that opens a span around it.

Nothing is opened while a compiler traces (`torch.compiler.is_dynamo_compiling`, which it takes for a constant, so that
no graph breaks), in other threads than the one that installed the patches, and where the span may not open.
"""

import inspect
from collections.abc import Callable
from threading import get_ident
from typing import Any

from charact.measure.script.hooks.compile_patches import CompilePatches
from charact.measure.script.hooks.optimizer_patches import OptimizerPatches
from charact.measure.script.hooks.patch_context import Watch
from charact.measure.script.hooks.replacements import subclasses
from charact.measure.script.spans.recorder import Kind, SpanRecorder

_COLLECTIVES = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_to_all", "all_to_all_single",
    "barrier", "broadcast", "broadcast_object_list", "gather", "isend", "irecv", "recv", "reduce", "reduce_scatter",
    "reduce_scatter_tensor", "scatter", "send",
)


class Patches:
    """The replaced functions, which can be put back.

    Args:
        recorder: takes the spans.
        seen: told of each module, optimizer and loader's iterator, with its number, when its first span opens.
        ended: called with kind and owner's number after a step, a model's forward, a backward or a fetch, when no span
            is open.
    """

    def __init__(self, recorder: SpanRecorder, seen: Callable[[Any, int], None],
                 ended: Callable[[Kind, int], None]) -> None:
        self._watch = Watch(recorder, seen, ended)
        self._optimizers = OptimizerPatches(self._watch)
        self._compiling = CompilePatches(self._watch)

    @property
    def optimizer_made(self) -> bool:
        """Whether the program has made an optimizer: then steps are to be expected."""
        return self._optimizers.any_made

    def install(self) -> None:
        """Replace the functions; those that the program has taken hold of already are not watched.

        Its models, loaders and optimizers may be there already.
        """
        import torch
        from torch.nn import functional
        from torch.nn.modules.loss import _Loss
        from torch.utils.data import dataloader

        self._watch.is_compiling = torch.compiler.is_dynamo_compiling
        self._is_grad_enabled = torch.is_grad_enabled
        self._loss_class, self._tensor_class = _Loss, torch.Tensor
        replace = self._watch.replacements.wrap
        replace(torch.nn.Module, "__call__", self._module_call)
        self._watch_own_calls(torch.nn.Module)
        for name in dir(functional):
            if (name.endswith("_loss") or "cross_entropy" in name or name == "kl_div") and not name.startswith("_"):
                replace(functional, name, self._watch.span(Kind.LOSS))
        for name in ("backward", "grad"):
            replace(torch.autograd, name, self._watch.span(Kind.BACKWARD, tell=True))
        replace(torch.nn.Module, "zero_grad", self._watch.span(Kind.TIDY))
        replace(dataloader._BaseDataLoaderIter, "__next__", self._fetch)
        replace(dataloader.DataLoader, "__iter__", self._watch.span(Kind.FETCH))
        for name in ("to", "cuda"):
            replace(torch.Tensor, name, self._copy)
        if torch.distributed.is_available():
            for name in _COLLECTIVES:
                replace(torch.distributed, name, self._watch.span(Kind.COMMUNICATION))
        self._optimizers.install()
        self._compiling.install()

    def remove(self) -> None:
        """Put everything back, but for what the program itself has replaced meanwhile."""
        self._watch.replacements.undo()
        self._compiling.remove()

    def _module_call(self, original: Any) -> Any:
        """A model's forward, or a loss's; the commonest call of all, so its checks come in order of their cost."""
        recorder, is_compiling, grad_enabled, thread = (
            self._watch.recorder, self._watch.is_compiling, self._is_grad_enabled, self._watch.thread)

        def watched(module: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or Kind.FORWARD not in recorder.may_open or get_ident() != thread:
                return original(module, *args, **kwargs)
            if isinstance(module, self._loss_class):
                kind, owner = Kind.LOSS, 0
            else:
                kind, owner = Kind.FORWARD, self._watch.notice(module)
            recorder.enter(kind, owner, grad=grad_enabled(), training=module.training)
            outputs = None
            try:
                outputs = original(module, *args, **kwargs)
            finally:
                if kind is Kind.FORWARD and self._is_criterion(module, outputs):
                    recorder.leave_as(Kind.LOSS)
                else:
                    recorder.leave()
            if kind is Kind.FORWARD and recorder.idle:
                self._watch.ended(kind, owner)
            return outputs

        return watched

    def _watch_own_calls(self, base: Any) -> None:
        """Watch the `__call__` of modules that have one of their own, those of classes that are yet to come too."""
        def watch_own(kind: Any) -> None:
            own = inspect.getattr_static(kind, "__call__")
            if inspect.isfunction(own) and not kind.__module__.startswith("torch."):
                self._watch.replacements.wrap(kind, "__call__", self._module_call)

        def made(kind: Any, /, **options: Any) -> None:
            super(base, kind).__init_subclass__(**options)
            watch_own(kind)

        for kind in subclasses(base):
            watch_own(kind)
        self._watch.replacements.put(base, "__init_subclass__", classmethod(made))

    def _is_criterion(self, module: Any, outputs: Any) -> bool:
        """Whether a module without weights made one number: a loss that someone wrote as a module."""
        return isinstance(outputs, self._tensor_class) and outputs.dim() == 0 and not any(
            True for _ in module.parameters())

    def _fetch(self, original: Any) -> Any:
        """The next batch; finding that there is none begins no iteration."""
        recorder = self._watch.recorder

        def watched(iterator: Any) -> Any:
            if not self._watch.may(Kind.FETCH):
                return original(iterator)
            number = self._watch.notice(iterator)
            recorder.enter(Kind.FETCH, number)
            try:
                batch = original(iterator)
            except StopIteration:
                recorder.leave_as(Kind.EXHAUSTED)
                raise
            except BaseException:
                recorder.drop()
                raise
            recorder.leave()
            if recorder.idle:
                self._watch.ended(Kind.FETCH, number)
            return batch

        return watched

    def _copy(self, original: Any) -> Any:
        """A tensor's move from the host to a device; other conversions are no phase of their own."""
        recorder = self._watch.recorder

        def watched(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._watch.may(Kind.COPY) or tensor.device.type != "cpu":
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

        return watched
