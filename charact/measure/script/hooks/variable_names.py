"""What a program calls a model or an optimizer that it has just called. No torch in here."""

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

_NOT_THE_PROGRAM = ("charact", "torch")


def variable_name(thing: Any) -> str | None:
    """Name of a variable of the running functions that holds a thing, the outermost function's; else of an attribute.

    The outermost, since a `train(model)` calls every model the same. A part of a model that such a variable holds is
    named `model.encoder`. None where no name is found.
    """
    frames: list[FrameType] = []
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in _NOT_THE_PROGRAM:
            frames.append(frame)
        frame = frame.f_back
    owners = [vars(one.f_locals["self"]) for one in frames if hasattr(one.f_locals.get("self"), "__dict__")]
    modules = [attributes["_modules"] for attributes in owners if isinstance(attributes.get("_modules"), dict)]
    places = *(one.f_locals for one in reversed(frames)), *reversed(owners), *reversed(modules)
    named = [(name, value) for variables in places for name, value in list(variables.items())
             if isinstance(name, str) and name.isidentifier() and name[0] != "_" and name != "self"]
    found = (name for name, value in named if value is thing)
    return next(found, None) or next(_paths(thing, named), None)


def _paths(thing: Any, named: list[tuple[str, Any]]) -> Iterator[str]:
    """Names of a part of models; of one without weights nobody asks, and there may be a new one in each iteration."""
    if not hasattr(type(thing), "named_modules") or not any(True for _ in thing.parameters()):
        return
    for name, value in named:
        if hasattr(type(value), "named_modules"):
            yield from (f"{name}.{path}" for path, part in value.named_modules() if part is thing)
