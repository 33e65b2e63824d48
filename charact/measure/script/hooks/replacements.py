"""Replacement of attributes of modules, classes and objects, with undo; imports no torch."""

import functools
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any, TypeVar

_ABSENT = object()
Wrapper = TypeVar("Wrapper", bound=Callable[..., Any])


class Replacements:
    """Record of replaced attributes, from which they are restored."""

    def __init__(self) -> None:
        self._made: list[tuple[Any, str, Any, Any]] = []

    def wrap(self, target: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        """Replace a function by `wrap(function)`; skip attributes that are not callable or already replaced."""
        original = getattr(target, name)
        if not callable(original) or self.holds(original):
            return
        replacement: Any = functools.wraps(original)(hidden_from_warnings(wrap(original)))
        replacement.__prepare_scriptable__ = lambda: original  # TorchScript compiles the original
        self.put(target, name, replacement)

    def put(self, target: Any, name: str, replacement: Any) -> None:
        """Set an attribute of the target itself; an inherited attribute is shadowed."""
        self._made.append((target, name, vars(target).get(name, _ABSENT), replacement))
        setattr(target, name, replacement)

    def holds(self, function: Any) -> bool:
        """Return whether a function is one of the replacements."""
        return any(function is replacement for *_, replacement in self._made)

    def undo(self) -> None:
        """Restore all attributes, except those that the program has replaced in the meantime."""
        for target, name, original, replacement in reversed(self._made):
            if vars(target).get(name) is not replacement:
                continue
            if original is _ABSENT:
                delattr(target, name)
            else:
                setattr(target, name, original)
        self._made.clear()


def hidden_from_warnings(function: Wrapper) -> Wrapper:
    """Change and return a function, so that the `stacklevel` of a warning does not count its frames."""
    assert isinstance(function, FunctionType)
    function.__code__ = code_hidden_from_warnings(function.__code__)
    return function


@functools.cache
def code_hidden_from_warnings(code: CodeType) -> CodeType:
    """Return a copy of the code with a file name that `warnings` skips, because it looks like import machinery."""
    return code.replace(co_filename=f"{code.co_filename} (importlib._bootstrap)")


def subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    """Yield all direct and indirect subclasses; one with several bases may appear repeatedly."""
    for one in kind.__subclasses__():
        yield one
        yield from subclasses(one)
