"""Patches that record compilation time. The compiler is not imported before the first compilation."""

import sys
from collections.abc import Callable, Iterator
from inspect import isfunction
from threading import get_ident
from types import CodeType
from typing import Any

from charact.measure.script.hooks.patch_context import PatchContext, code_hidden_from_warnings
from charact.measure.script.spans.recorder import Kind

_PACKAGE = "charact.measure.script."


class CompilePatches:
    """Patch of `torch.compile`, and callbacks of its compiler."""

    def __init__(self, context: PatchContext) -> None:
        self._context = context
        self._on_compile: tuple[Callable[..., None], Callable[..., None]] | None = None

    def install(self) -> None:
        """Install the patch, and the callbacks if the compiler is imported already."""
        import torch

        self._context.replacements.wrap(torch, "compile", self._compile)
        if "torch._dynamo" in sys.modules:
            self._register_compile_callbacks()

    def remove(self) -> None:
        """Remove the callbacks; the context's replacements undo the patch of `torch.compile`."""
        if self._on_compile is not None:
            handler = sys.modules["torch._dynamo.callback"].callback_handler
            handler.remove_start_callback(self._on_compile[0])
            handler.remove_end_callback(self._on_compile[1])
            self._on_compile = None

    def _compile(self, original: Any) -> Any:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if self._on_compile is None and not self._context.is_compiling():
                self._register_compile_callbacks()
            return original(*args, **kwargs)

        return wrapper

    def _register_compile_callbacks(self) -> None:
        """Register the callbacks; make the compiler skip charact's frames and trace the program's frames below them.

        It looks at every frame below a compiled function. Two functions, which call much other code, are disabled.
        """
        from torch._dynamo import disable
        from torch._dynamo.callback import callback_handler
        from torch._dynamo.eval_frame import skip_code

        for code in _own_code():
            skip_code(code)
            skip_code(code_hidden_from_warnings(code))
        context = self._context
        context.on_owner, context.on_span_end = disable(context.on_owner), disable(context.on_span_end)  # type: ignore[no-untyped-call]
        self._on_compile = (self._compile_started, self._compile_ended)
        callback_handler.register_start_callback(self._on_compile[0])
        callback_handler.register_end_callback(self._on_compile[1])

    def _compile_started(self, _: Any) -> None:
        if Kind.COMPILE in self._context.recorder.may_open and get_ident() == self._context.thread:
            self._context.recorder.enter(Kind.COMPILE)

    def _compile_ended(self, _: Any) -> None:
        if self._context.recorder.top is Kind.COMPILE and get_ident() == self._context.thread:
            self._context.recorder.leave()


def _own_code() -> Iterator[CodeType]:
    """Yield the code of every function of `charact.measure.script`, and of the functions defined inside."""
    modules = [module for name, module in sys.modules.items() if name.startswith(_PACKAGE)]
    classes = [value for module in modules for value in vars(module).values() if isinstance(value, type)]
    # A property holds its function.
    values = [getattr(value, "fget", value) for owner in (*modules, *classes) for value in vars(owner).values()]
    codes = [value.__code__ for value in values if isfunction(value) and value.__module__.startswith(_PACKAGE)]
    while codes:
        code = codes.pop()
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        yield code
