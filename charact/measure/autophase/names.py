"""What a program calls a model or an optimizer that it has just called. No torch in here."""

import sys
from types import FrameType
from typing import Any

_NOT_THE_PROGRAM = ("charact", "torch")


def variable_name(thing: Any) -> str | None:
    """Name of a variable of the running functions that holds a thing, the outermost function's; else of an attribute.

    The outermost, since a `train(model)` calls every model the same. None where no name is found.
    """
    frames: list[FrameType] = []
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in _NOT_THE_PROGRAM:
            frames.append(frame)
        frame = frame.f_back
    owners = [vars(one.f_locals["self"]) for one in frames if hasattr(one.f_locals.get("self"), "__dict__")]
    modules = [attributes["_modules"] for attributes in owners if isinstance(attributes.get("_modules"), dict)]
    for variables in (*(one.f_locals for one in reversed(frames)), *reversed(owners), *reversed(modules)):
        for name, value in list(variables.items()):
            if value is thing and isinstance(name, str) and name.isidentifier() and name[0] != "_" and name != "self":
                return name
    return None
