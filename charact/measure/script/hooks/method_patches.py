"""Patches of methods of modules that a program calls by themselves, such as `model.encode(x)`: each is a forward.

Without them, only the calls of modules in such a method would count as forward, and the time between them as other.
"""

import inspect
import sys
from collections import defaultdict
from collections.abc import Callable
from enum import Enum, auto
from threading import get_ident
from types import CodeType, FrameType
from typing import Any

from charact.measure.script.hooks.patch_context import PatchContext
from charact.measure.script.spans.recorder import Kind, Slice


class _State(Enum):
    """What a patched method does with its next call."""

    OBSERVED = auto()
    """Notes what the method does, to decide between the other two."""
    FORWARD = auto()
    """Opens a span."""
    UNCHANGED = auto()
    """Opens no span: the method does more than a forward, such as a training step."""


class MethodPatches:
    """Finds such methods while the program runs, and patches them.

    A method is found when it calls a module while no span is open. If it is `forward`, the rest of that call is a span,
    and so are its later calls. Any other method is observed in its next call, and becomes a span if it only computes a
    forward.
    """

    def __init__(self, context: PatchContext) -> None:
        self._context = context
        self.seen: set[CodeType] = set()
        """Code that has called a module while no span was open; `find` was called with it."""
        self.names: defaultdict[int, set[str]] = defaultdict(set)
        """Names of the methods other than `forward` that were recorded as a forward, by the model's owner ID."""

    def install(self) -> None:
        """Prepare to find methods, once PyTorch is imported."""
        import torch

        self._is_grad_enabled, self._module_class, self._tensor_class = (
            torch.is_grad_enabled, torch.nn.Module, torch.Tensor)

    def find(self, frame: FrameType) -> bool:
        """Patch the method that a frame runs, if it is one of a module's class.

        Return whether a span is open now, since the method is `forward`.
        """
        code = frame.f_code
        self.seen.add(code)
        module = _argument(frame, "self") if code.co_varnames[:1] == ("self",) else None
        for base in type(module).__mro__ if isinstance(module, self._module_class) else ():
            for name, function in list(vars(base).items()) if code.co_name in vars(base) else ():
                if inspect.isfunction(function) and getattr(inspect.unwrap(function), "__code__", None) is code:
                    self._context.replacements.wrap(base, name, self._method)
                    return name == "forward" and self._enter(frame, module)
        return False

    def _enter(self, frame: FrameType, module: Any) -> bool:
        """Open the span of a `forward` that runs already; return False if its end cannot be seen.

        A profile function sees it, unless the program has one. It costs some 0.1 µs for each call until then.

        *Error*: what `forward` does before its first call of a module is not part of the span.
        """
        context, recorder = self._context, self._context.recorder
        if sys.getprofile() is not None:
            return False

        def on_event(current: FrameType, event: str, _: Any) -> None:
            if event == "return" and current is frame:
                sys.setprofile(None)
                if not recorder.idle:  # a forked child has no spans
                    recorder.leave()
                    context.on_span_end(Kind.FORWARD, owner)

        names = frame.f_code.co_varnames[1:frame.f_code.co_argcount]
        owner = context.owner_id(module)
        context.events.inputs(owner, module, tuple(_argument(frame, name) for name in names), {})
        recorder.enter(Kind.FORWARD, owner, grad=self._is_grad_enabled(), training=module.training)
        sys.setprofile(on_event)
        return True

    def _method(self, original: Any) -> Callable[..., Any]:
        recorder, context = self._context.recorder, self._context
        name = original.__name__
        state = _State.FORWARD if name == "forward" else _State.OBSERVED
        with_grad = True

        def wrapper(module: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal state, with_grad
            if (state is _State.UNCHANGED or context.is_compiling() or Kind.FORWARD not in recorder.may_open
                    or get_ident() != context.thread):
                return original(module, *args, **kwargs)
            owner = context.owner_id(module)
            if name != "forward" and owner in context.events.generating and not context.events.trains_batch:
                return original(module, *args, **kwargs)  # each call inside is a forward
            if state is _State.OBSERVED:
                slices, was_kept, recorder.keeps = recorder.slices, recorder.keeps, True
                first = len(slices)
                try:
                    outputs = original(module, *args, **kwargs)
                finally:
                    recorder.keeps = was_kept
                inside = slices[first:] if recorder.slices is slices else []  # written if there were too many
                with_grad = any(each.grad for each in inside if each.kind is Kind.FORWARD)
                state = _State.FORWARD if self._is_forward(inside, owner, outputs) else _State.UNCHANGED
                return outputs
            if recorder.idle and (caller := sys._getframe(1)).f_code not in self.seen and self.find(caller):
                return original(module, *args, **kwargs)
            context.events.inputs(owner, module, args, kwargs)
            if name == "forward":
                recorder.enter(Kind.FORWARD, owner, grad=self._is_grad_enabled(), training=module.training)
            else:
                self.names[owner].add(name)
                recorder.enter(Kind.FORWARD, owner, grad=with_grad and self._is_grad_enabled(),
                               training=module.training, method=True)
            try:
                outputs = original(module, *args, **kwargs)
            finally:
                recorder.leave()
            if recorder.idle:
                context.on_span_end(Kind.FORWARD, owner)
            return outputs

        return wrapper

    def _is_forward(self, slices: list[Slice], model: int, outputs: Any) -> bool:
        """Return whether a method only computed a forward, judged by the slices inside and by what it returned.

        A scalar is a loss, which would count as forward unless the method calls a loss function. So may be what a
        method computes from the outputs of its own model with gradients. Without gradients, all of it is inference,
        such as a `generate` that samples tokens in a training. In a program that only infers, each call of a model that
        generates is a forward of its own.
        """
        kinds = {each.kind for each in slices}
        if Kind.FORWARD not in kinds or not kinds <= {Kind.FORWARD, Kind.COPY, Kind.LOSS, Kind.COMPILE}:
            return False
        if isinstance(outputs, self._tensor_class) and outputs.dim() == 0 and Kind.LOSS not in kinds:
            return False
        forwards = [each for each in slices if each.kind is Kind.FORWARD]
        events = self._context.events
        if not events.any_optimizer and any(each.owner in events.generating for each in forwards):
            return False
        return not any(each.grad for each in forwards) or all(each.owner != model or each.method for each in forwards)


def _argument(frame: FrameType, name: str) -> Any:
    """Return an argument of a running function; None if the function has deleted it."""
    variables = frame.f_locals
    value = variables.get(name)
    if isinstance(variables, dict):  # before Python 3.13, a copy that lives as long as the frame, with all tensors
        variables.clear()
    return value
