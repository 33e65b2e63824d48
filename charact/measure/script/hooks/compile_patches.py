"""How compilations are heard of, whose time is told apart. Before the first, the compiler is not even imported."""

import sys
from collections.abc import Callable, Iterator
from inspect import isfunction
from threading import get_ident
from types import CodeType
from typing import Any

from charact.measure.script.hooks.patch_context import Watch
from charact.measure.script.hooks.replacements import passed_over_code
from charact.measure.script.spans.recorder import Kind

_PACKAGE = "charact.measure.script."


class CompilePatches:
    """What is replaced of `torch.compile`, and what its compiler is asked to call."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._on_compile: tuple[Callable[..., None], Callable[..., None]] | None = None

    def install(self) -> None:
        """Replace the function; models that were to be compiled at their first call may be there already."""
        import torch

        self._watch.replacements.wrap(torch, "compile", self._compile)
        if "torch._dynamo" in sys.modules:
            self._hear_of_compilation()

    def remove(self) -> None:
        """Hear of no further compilation."""
        if self._on_compile is not None:
            handler = sys.modules["torch._dynamo.callback"].callback_handler
            handler.remove_start_callback(self._on_compile[0])
            handler.remove_end_callback(self._on_compile[1])
            self._on_compile = None

    def _compile(self, original: Any) -> Any:
        def watched(*args: Any, **kwargs: Any) -> Any:
            if self._on_compile is None and not self._watch.is_compiling():
                self._hear_of_compilation()
            return original(*args, **kwargs)

        return watched

    def _hear_of_compilation(self) -> None:
        from torch._dynamo.callback import callback_handler

        _keep_compiler_out(self._watch)
        self._on_compile = (self._compile_started, self._compile_ended)
        callback_handler.register_start_callback(self._on_compile[0])
        callback_handler.register_end_callback(self._on_compile[1])

    def _compile_started(self, _: Any) -> None:
        if Kind.COMPILE in self._watch.recorder.may_open and get_ident() == self._watch.thread:
            self._watch.recorder.enter(Kind.COMPILE)

    def _compile_ended(self, _: Any) -> None:
        if self._watch.recorder.is_top(Kind.COMPILE) and get_ident() == self._watch.thread:
            self._watch.recorder.leave()


def _keep_compiler_out(watch: Watch) -> None:
    """Have the compiler go past our frames, to those at which it would begin without them.

    It looks at every frame that it comes across below a compiled function. What our frames call in turn is hidden from
    it at the two places where that is much.
    """
    from torch._dynamo import disable
    from torch._dynamo.eval_frame import skip_code

    for code in _own_code():
        skip_code(code)
        skip_code(passed_over_code(code))
    watch.seen, watch.ended = disable(watch.seen), disable(watch.ended)  # type: ignore[no-untyped-call]


def _own_code() -> Iterator[CodeType]:
    """Code of every function of `charact.measure.script`, and of those that they define."""
    modules = [module for name, module in sys.modules.items() if name.startswith(_PACKAGE)]
    classes = [one for module in modules for one in vars(module).values() if isinstance(one, type)]
    # A property holds its function.
    things = [getattr(one, "fget", one) for owner in (*modules, *classes) for one in vars(owner).values()]
    codes = [one.__code__ for one in things if isfunction(one) and one.__module__.startswith(_PACKAGE)]
    while codes:
        code = codes.pop()
        codes += [one for one in code.co_consts if isinstance(one, CodeType)]
        yield code
