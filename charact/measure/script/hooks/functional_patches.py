"""Patches for programs that train without an optimizer: transforms of `torch.func`, and blocks without gradients."""

from collections.abc import Callable
from threading import get_ident
from typing import Any

from charact.measure.script.hooks.patch_context import PatchContext
from charact.measure.script.spans.recorder import Kind

_SHORTEST_NS = 20_000
"""Shortest block without gradients that is recorded: programs may enter thousands of short ones."""


class FunctionalPatches:
    """Patches of `torch.func` and `torch.no_grad`."""

    def __init__(self, context: PatchContext, has_optimizer: Callable[[], bool]) -> None:
        self._context, self._has_optimizer = context, has_optimizer
        self._depth = 0
        """Number of open blocks without gradients."""
        self._begun: Any = None
        """Start of the outermost block, see `SpanRecorder.begin_untracked`; None if it is not recorded."""

    def install(self) -> None:
        """Install the patches; `torch.func` looks its functions up here whenever they are called."""
        import torch
        from torch._functorch import eager_transforms

        replace = self._context.replacements.wrap
        gradient = self._context.span(Kind.TRANSFORM, notify=Kind.BACKWARD)
        for name, wrap in (("grad_impl", gradient), ("grad_and_value_impl", gradient),
                           ("_vjp_with_argnums", self._vjp)):
            if hasattr(eager_transforms, name):
                replace(eager_transforms, name, wrap)
        replace(torch.no_grad, "__enter__", self._enter)
        replace(torch.no_grad, "__exit__", self._exit)

    def _vjp(self, original: Any) -> Any:
        """Wrap a call that computes a forward, and returns a function that computes the gradients."""
        recorded = self._context.span(Kind.TRANSFORM)(original)
        in_backward = self._context.span(Kind.BACKWARD, notify=Kind.BACKWARD)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not self._context.may_open(Kind.TRANSFORM):
                return original(*args, **kwargs)
            outputs, backward, *others = recorded(*args, **kwargs)
            return outputs, in_backward(backward), *others

        return wrapper

    def _enter(self, original: Any) -> Any:
        recorder, thread = self._context.recorder, self._context.thread

        def wrapper(block: Any) -> Any:
            if get_ident() == thread and not self._has_optimizer():
                self._depth += 1
                if self._depth == 1:
                    self._begun = recorder.begin_untracked()
            return original(block)

        return wrapper

    def _exit(self, original: Any) -> Any:
        """Wrap the end of a block; blocks need not nest, since a generator may hold one open."""
        recorder, thread = self._context.recorder, self._context.thread

        def wrapper(block: Any, *error: Any) -> Any:
            if self._depth and get_ident() == thread:
                self._depth -= 1
                if not self._depth and self._begun is not None:
                    recorder.end_untracked(self._begun, _SHORTEST_NS)
            return original(block, *error)

        return wrapper
