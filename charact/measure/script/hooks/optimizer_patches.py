"""Patches that record optimizers' steps, alone or inside a gradient scaler's."""

import functools
import gc
from collections.abc import Callable
from inspect import isfunction
from types import MethodType
from typing import Any

from charact.measure.script.hooks.patch_context import PatchContext, hidden_from_warnings, subclasses
from charact.measure.script.spans.recorder import ZEROED, Kind


class OptimizerPatches:
    """Patches of optimizers and gradient scalers."""

    def __init__(self, context: PatchContext) -> None:
        self._context = context
        self._base: type[Any] = object

    def install(self) -> None:
        """Install the patches, also on existing optimizers."""
        import torch

        self._base = torch.optim.Optimizer
        replace, span = self._context.replacements.wrap, self._context.span
        replace(torch.optim.Optimizer, "_patch_step_function", self._optimizer_created)
        replace(torch.optim.Optimizer, "zero_grad", span(Kind.UPDATE, ZEROED))
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            for module in (torch.nn.utils, torch.nn.utils.clip_grad):
                replace(module, name, span(Kind.UPDATE))
        replace(torch.amp.GradScaler, "step", self._scaler_step)
        for name in ("unscale_", "update"):
            replace(torch.amp.GradScaler, name, span(Kind.UPDATE))
        self._patch_existing_optimizers(torch.optim.Optimizer)

    def _optimizer_created(self, original: Any) -> Any:
        """Patch a class's `step` after PyTorch has wrapped it, at the first instance of the class."""
        def wrapper(optimizer: Any) -> None:
            self._context.events.any_optimizer = True
            self._context.places.note(optimizer)
            original(optimizer)
            self._patch_class(type(optimizer))

        return wrapper

    def _patch_class(self, kind: Any) -> None:
        """Patch `step`, and `..._step` methods that are defined outside of PyTorch, such as `first_step` of SAM."""
        self._context.replacements.wrap(kind, "step", self._optimizer_step)
        for base in kind.__mro__:
            if issubclass(base, self._base) and not base.__module__.startswith("torch."):
                for name, method in list(vars(base).items()):
                    if name.endswith("_step") and not name.startswith("_") and isfunction(method):
                        self._context.replacements.wrap(base, name, self._part_of_step)

    def _patch_existing_optimizers(self, base: Any) -> None:
        """Patch the steps of optimizers that already exist.

        A learning-rate scheduler replaces the optimizer's `step` by its own, which calls the unpatched step of the
        class.
        """
        wrapped = [kind for kind in subclasses(base) if hasattr(vars(kind).get("step"), "hooked")]
        for kind in wrapped:
            self._patch_class(kind)
        for obj in gc.get_objects() if wrapped else []:
            if issubclass(type(obj), base) and "step" in vars(obj):
                own = obj.step
                call = hidden_from_warnings(lambda _, *args, _own=own, **kwargs: _own(*args, **kwargs))
                step = functools.wraps(own)(hidden_from_warnings(self._optimizer_step(call)))
                self._context.replacements.put(obj, "step", MethodType(step, obj))
        self._context.events.any_optimizer |= bool(wrapped)

    def _optimizer_step(self, original: Any) -> Any:
        watch_closure = self._context.span(Kind.CLOSURE)

        def wrapper(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if args and callable(args[0]):
                args = watch_closure(args[0]), *args[1:]
            elif callable(kwargs.get("closure")):
                kwargs["closure"] = watch_closure(kwargs["closure"])
            return self._step(optimizer, original, optimizer, *args, **kwargs)

        return wrapper

    def _part_of_step(self, original: Any) -> Any:
        """Wrap a method that updates weights, and may call the step of another optimizer."""
        recorder = self._context.recorder

        def wrapper(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._context.may_open(Kind.UPDATE):
                return original(optimizer, *args, **kwargs)
            begin = len(recorder.slices)
            recorder.enter(Kind.UPDATE)
            try:
                return original(optimizer, *args, **kwargs)
            finally:
                recorder.leave()
                stepped = [each.owner for each in recorder.slices[begin:] if each.kind is Kind.STEP]
                if stepped and recorder.idle:
                    self._context.on_span_end(Kind.STEP, stepped[-1])

        return wrapper

    def _scaler_step(self, original: Any) -> Any:
        """Wrap a scaler's `step`: it may skip the optimizer's, but it ends an iteration all the same."""
        def wrapper(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            return self._step(optimizer, original, scaler, optimizer, *args, **kwargs)

        return wrapper

    @hidden_from_warnings
    def _step(self, optimizer: Any, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        recorder = self._context.recorder
        if not self._context.may_open(Kind.STEP):
            return call(*args, **kwargs)
        number = self._context.owner_id(optimizer)
        recorder.enter(Kind.STEP, number)
        try:
            return call(*args, **kwargs)
        finally:
            recorder.leave()
            if recorder.idle:
                self._context.on_span_end(Kind.STEP, number)
