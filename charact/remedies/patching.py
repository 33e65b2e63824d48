"""How remedies change a program from outside: arguments of a constructor, and calls of the outermost models.

`apply` functions of remedies call these in the process of a trial, when PyTorch has just been imported.
"""

import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any, NoReturn

from charact.measure.script.program.frames import frames_from, location_of


class Unavailable(Exception):
    """A remedy cannot be applied to this program; the message says why."""


def unavailable(reason: str) -> NoReturn:
    """End the trial because the remedy cannot be applied.

    Raises:
        Unavailable: always.
    """
    raise Unavailable(reason)


def change_arguments(kind: type, values: Mapping[str, Any], file: str | None, line: int | None,
                     check: Callable[[Mapping[str, Any]], None] = lambda arguments: None) -> None:
    """Change arguments of a class's constructor where it is called at a line; everywhere if the line is not known.

    `check` gets the arguments of such a call by name, and may call `unavailable`.
    """
    original, signature = kind.__init__, inspect.signature(kind.__init__)  # type: ignore[misc]

    @functools.wraps(original)
    def changed(self: Any, *arguments: Any, **named: Any) -> None:
        if type(self) is not kind or not _is_called_at(file, line):
            original(self, *arguments, **named)
            return
        bound = signature.bind(self, *arguments, **named)
        check(bound.arguments)
        bound.arguments.update(values)
        original(*bound.args, **bound.kwargs)

    kind.__init__ = changed  # type: ignore[misc]


def _is_called_at(file: str | None, line: int | None) -> bool:
    """Return whether the innermost line of the program's own code is a given one, as records name it."""
    if file is None:
        return True
    location = location_of(frames_from(sys._getframe(2)))
    return location is not None and location[0] == f"{file}:{line}"


class OutermostCalls:
    """Calls of modules with parameters that no other module makes.

    `on_first` is called with each such module before its first call. `around` returns a context in which the module is
    called, or None. `inputs` returns the positional and named arguments to call it with.
    """

    def __init__(self, *, on_first: Callable[[Any], None] = lambda module: None,
                 around: Callable[[Any], AbstractContextManager[Any] | None] = lambda module: None,
                 inputs: Callable[[Any], Any] = lambda value: value) -> None:
        import torch

        self._on_first, self._around, self._inputs = on_first, around, inputs
        self._known: dict[int, weakref.ref[Any]] = {}  # by id, since a program's modules may have no hash
        self._depth = 0
        original = torch.nn.Module.__call__
        is_compiling = torch.compiler.is_compiling

        @functools.wraps(original)
        def call(module: Any, *arguments: Any, **named: Any) -> Any:
            if is_compiling() or self._depth or next(module.parameters(), None) is None:
                return original(module, *arguments, **named)
            known = self._known.get(id(module))
            if known is None or known() is not module:
                self._known[id(module)] = weakref.ref(module)
                self._on_first(module)
            self._depth += 1
            try:
                with ExitStack() as stack:
                    if (context := self._around(module)) is not None:
                        stack.enter_context(context)
                    return original(module, *map(self._inputs, arguments),
                                    **{name: self._inputs(value) for name, value in named.items()})
            finally:
                self._depth -= 1

        torch.nn.Module.__call__ = call  # type: ignore[method-assign]
