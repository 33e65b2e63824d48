"""How the steps of optimizers are watched, alone or within a gradient scaler's."""

import functools
import gc
from collections.abc import Callable
from types import MethodType
from typing import Any

from charact.measure.script.hooks.patch_context import Watch
from charact.measure.script.hooks.replacements import passed_over, subclasses
from charact.measure.script.spans.recorder import Kind


class OptimizerPatches:
    """What is replaced of optimizers and scalers."""

    def __init__(self, watch: Watch) -> None:
        self.any_made = False
        """Whether the program has made an optimizer: then steps are to be expected."""
        self._watch = watch

    def install(self) -> None:
        """Replace the functions; optimizers may be there already."""
        import torch

        replace, span = self._watch.replacements.wrap, self._watch.span
        replace(torch.optim.Optimizer, "_patch_step_function", self._optimizer_made)
        replace(torch.optim.Optimizer, "zero_grad", span(Kind.TIDY))
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            for place in (torch.nn.utils, torch.nn.utils.clip_grad):
                replace(place, name, span(Kind.TIDY))
        replace(torch.amp.GradScaler, "step", self._scaler_step)
        for name in ("unscale_", "update"):
            replace(torch.amp.GradScaler, name, span(Kind.TIDY))
        self._watch_present_optimizers(torch.optim.Optimizer)

    def _optimizer_made(self, original: Any) -> Any:
        """PyTorch wraps an optimizer class's step when the first of its class is made; so is ours put around it."""
        def watched(optimizer: Any) -> None:
            self.any_made = True
            original(optimizer)
            self._watch.replacements.wrap(type(optimizer), "step", self._optimizer_step)

        return watched

    def _watch_present_optimizers(self, base: Any) -> None:
        """Watch the steps of optimizers that were made before.

        A learning-rate scheduler has put a step of its own into the optimizer, which calls the class's as it was.
        """
        wrapped = [kind for kind in subclasses(base) if hasattr(vars(kind).get("step"), "hooked")]
        for kind in wrapped:
            self._watch.replacements.wrap(kind, "step", self._optimizer_step)
        for thing in gc.get_objects() if wrapped else []:
            if issubclass(type(thing), base) and "step" in vars(thing):
                own = thing.step
                watched = functools.wraps(own)(passed_over(self._own_step(own)))
                self._watch.replacements.put(thing, "step", MethodType(watched, thing))
        self.any_made |= bool(wrapped)

    def _own_step(self, own: Any) -> Any:
        return self._optimizer_step(passed_over(lambda _, *args, **kwargs: own(*args, **kwargs)))

    def _optimizer_step(self, original: Any) -> Any:
        watch_closure = self._watch.span(Kind.CLOSURE)

        def watched(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if args and callable(args[0]):
                args = watch_closure(args[0]), *args[1:]
            elif callable(kwargs.get("closure")):
                kwargs["closure"] = watch_closure(kwargs["closure"])
            return self._step(optimizer, original, optimizer, *args, **kwargs)

        return watched

    def _scaler_step(self, original: Any) -> Any:
        """A scaler may skip the optimizer's step, and that ends an iteration no less."""
        def watched(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            return self._step(optimizer, original, scaler, optimizer, *args, **kwargs)

        return watched

    @passed_over
    def _step(self, watched: Any, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        recorder = self._watch.recorder
        if not self._watch.may(Kind.STEP):
            return call(*args, **kwargs)
        number = self._watch.notice(watched)
        recorder.enter(Kind.STEP, number)
        try:
            return call(*args, **kwargs)
        finally:
            recorder.leave()
            if recorder.idle:
                self._watch.ended(Kind.STEP, number)
