"""Replacing attributes of modules, classes and objects, and putting them back. No torch in here."""

import functools
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any, TypeVar

_ABSENT = object()
Wrapper = TypeVar("Wrapper", bound=Callable[..., Any])


class Replacements:
    """The attributes that were replaced."""

    def __init__(self) -> None:
        self._made: list[tuple[Any, str, Any, Any]] = []

    def wrap(self, place: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        """Replace a function by what is made of it; what is no function, or is one of ours, stays."""
        original = getattr(place, name)
        if not callable(original) or self.holds(original):
            return
        replacement: Any = functools.wraps(original)(passed_over(wrap(original)))
        replacement.__prepare_scriptable__ = lambda: original  # what TorchScript compiles instead
        self.put(place, name, replacement)

    def put(self, place: Any, name: str, replacement: Any) -> None:
        """Replace an attribute, or shade one that the place inherits."""
        self._made.append((place, name, vars(place).get(name, _ABSENT), replacement))
        setattr(place, name, replacement)

    def holds(self, function: Any) -> bool:
        """Whether a function is one of the replacements."""
        return any(function is replacement for *_, replacement in self._made)

    def undo(self) -> None:
        """Put everything back, but for what the program itself has replaced meanwhile."""
        for place, name, original, replacement in reversed(self._made):
            if vars(place).get(name) is not replacement:
                continue
            if original is _ABSENT:
                delattr(place, name)
            else:
                setattr(place, name, original)
        self._made.clear()


def passed_over(function: Wrapper) -> Wrapper:
    """The same function, whose frames a warning does not count that is to name the line of a caller (`stacklevel`)."""
    assert isinstance(function, FunctionType)
    function.__code__ = passed_over_code(function.__code__)
    return function


@functools.cache
def passed_over_code(code: CodeType) -> CodeType:
    """The same code in a file whose name is one that Python's warnings pass over: they do so with those of imports."""
    return code.replace(co_filename=f"{code.co_filename} (importlib._bootstrap)")


def subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    """All classes that descend from one."""
    for one in kind.__subclasses__():
        yield one
        yield from subclasses(one)
