"""Names of the variables in which a program holds its models and optimizers. No torch in here."""

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

_NOT_THE_PROGRAM = ("charact", "torch")


def variable_name(obj: Any) -> str | None:
    """Return the name of a variable of the running functions that holds an object, else of an attribute, else None.

    The outermost function wins, since a `train(model)` names every model the same. A submodule of a model that a
    variable holds is named like `model.encoder`.
    """
    frames: list[FrameType] = []
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in _NOT_THE_PROGRAM:
            frames.append(frame)
        frame = frame.f_back
    owners = [vars(one.f_locals["self"]) for one in frames if hasattr(one.f_locals.get("self"), "__dict__")]
    modules = [attributes["_modules"] for attributes in owners if isinstance(attributes.get("_modules"), dict)]
    scopes = *(one.f_locals for one in reversed(frames)), *reversed(owners), *reversed(modules)
    named = [(name, value) for variables in scopes for name, value in list(variables.items())
             if isinstance(name, str) and name.isidentifier() and name[0] != "_" and name != "self"]
    found = (name for name, value in named if value is obj)
    return next(found, None) or next(_paths(obj, named), None)


def _paths(obj: Any, named: list[tuple[str, Any]]) -> Iterator[str]:
    """Yield names of a submodule of models.

    Modules without weights are skipped: they need no name, and each iteration may create new ones.
    """
    if not hasattr(type(obj), "named_modules") or not any(True for _ in obj.parameters()):
        return
    for name, value in named:
        if hasattr(type(value), "named_modules"):
            yield from (f"{name}.{path}" for path, part in value.named_modules() if part is obj)
