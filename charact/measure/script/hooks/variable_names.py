"""Names of the variables in which a program holds its models and optimizers. No torch in here."""

import sys
from collections.abc import Iterator
from inspect import CO_OPTIMIZED
from types import FrameType
from typing import Any

_NOT_THE_PROGRAM = ("charact", "torch", "runpy")


def variable_name(obj: Any) -> str | None:
    """Return the name of a variable of the running functions that holds an object, else of an attribute, else None.

    The outermost function wins, since a `train(model)` names every model the same. A submodule of a model that a
    variable holds is named like `model.encoder`.
    """
    named = program_variables()
    found = (name for name, value in named if value is obj)
    return next(found, None) or next(_paths(obj, named), None)


def program_variables() -> list[tuple[str, Any]]:
    """Return names and values of the variables of the running functions, outermost first, then of their attributes."""
    variables = [_locals(frame) for frame in program_frames()]
    owners = [vars(one["self"]) for one in variables if hasattr(one.get("self"), "__dict__")]
    modules = [attributes["_modules"] for attributes in owners if isinstance(attributes.get("_modules"), dict)]
    scopes = *reversed(variables), *reversed(owners), *reversed(modules)
    return [(name, value) for scope in scopes for name, value in list(scope.items())
            if isinstance(name, str) and name.isidentifier() and name[0] != "_" and name != "self"]


def program_frames() -> Iterator[FrameType]:
    """Yield the frames of the running functions, innermost first, without those of charact and PyTorch."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in _NOT_THE_PROGRAM:
            yield frame
        frame = frame.f_back


def _locals(frame: FrameType) -> dict[str, Any]:
    """Return a copy of a frame's local variables.

    Up to Python 3.12, a function's frame keeps the dictionary that `f_locals` returns, and so its values, until the
    function returns. It is emptied here, unless the program itself holds it: `locals()` returns the same one.
    """
    kept = frame.f_locals
    copied = dict(kept)
    held_by_frame_and_here = 3  # and by the call of `getrefcount`
    if frame.f_code.co_flags & CO_OPTIMIZED and isinstance(kept, dict) \
            and sys.getrefcount(kept) <= held_by_frame_and_here:
        kept.clear()
    return copied


def _paths(obj: Any, named: list[tuple[str, Any]]) -> Iterator[str]:
    """Yield names of a submodule of models.

    Modules without weights are skipped: they need no name, and each iteration may create new ones.
    """
    if not hasattr(type(obj), "named_modules") or not any(True for _ in obj.parameters()):
        return
    for name, value in named:
        if hasattr(type(value), "named_modules"):
            yield from (f"{name}.{path}" for path, part in value.named_modules() if part is obj)
