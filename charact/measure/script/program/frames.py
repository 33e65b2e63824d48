"""Running functions of a watched program: its lines, its variables, and what created its objects. No torch in here."""

import contextlib
import linecache
import os
import re
import sys
import sysconfig
import weakref
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from charact.core.running_stack import without_collection

_MAX_TEXT = 120
"""Largest number of characters of a line's text."""
_LIBRARIES = tuple({os.path.join(sysconfig.get_path(name), "")
                    for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_PACKAGES = tuple(os.path.join("", name, "") for name in ("site-packages", "dist-packages"))
"""Folders of installed packages, also of a user or of another environment on the path."""
_CHARACT = os.path.join(str(Path(__file__).parents[3]), "")
_WRAPPERS = os.path.join(str(Path(__file__).parents[1] / "hooks"), "")
"""Charact's frames that call the program's own code."""

_COLLECTION = "ProgramEvents.collection"
"""Charact's function that garbage collections call: the line that runs causes them."""

_IMPORTS = "<frozen importlib._bootstrap>"
"""File of the frames that import a Python module."""
_CALLS_MODULE = "torch.nn.modules.module"
"""Python module whose functions call the forward of every `nn.Module`: not worth naming."""

CodeLocation = tuple[str, str, str | None]
"""File and line of the program's own code, its function, and what it calls or imports of a library."""


NO_LINE: dict[str, Any] = {"file": None, "line": None, "text": None}
_NOT_THE_PROGRAM = ("charact", "torch", "runpy")


def location_of(frames: Iterable[FrameType]) -> CodeLocation | None:
    """Return the innermost line of the program's own code, its function, and the library call or import in it.

    `frames` are those of a stack, the innermost first. None if charact's own work was running, or if the stack has no
    code of the program. Own code is outside of Python's library and the installed packages; the main module always
    counts as own code. Of nested calls in a library, it is the one that the own line made. Files below the main
    module's directory have a relative path. If a library imports a module when it is first called, the location is the
    library's line, relative to the packages: the program's line only happened to be the first.
    """
    library: CodeType | None = None
    module = imported = ""
    importer: CodeLocation | None = None
    is_import = False  # whether the frames so far end in an import statement
    for current in frames:
        code = current.f_code
        name = current.f_globals.get("__name__", "")
        if code.co_filename == _IMPORTS:
            if code.co_name == "_find_and_load":
                imported = str(without_collection(partial(getattr, current, "f_locals"))[0].get("name"))
            is_import, importer = True, None
        elif name == "__main__" or not (
                code.co_filename.startswith((*_LIBRARIES, _CHARACT, "<"))
                or any(folder in code.co_filename for folder in _PACKAGES)):
            called = "" if library is None else f"{module}.{library.co_qualname}"
            calls = ", ".join(filter(None, [called, imported and f"importing {imported}"]))
            place = f"{short_path(code.co_filename)}:{_line_number(current)}"
            return importer or (place, code.co_qualname, calls or None)
        elif not code.co_filename.startswith(_CHARACT):
            if library is None or name != _CALLS_MODULE:
                library, module = code, name
            if is_import and name != "importlib":
                path = code.co_filename
                for folder in _PACKAGES:
                    path = path.rpartition(folder)[2]
                path = path.removeprefix(next(filter(path.startswith, _LIBRARIES), ""))
                place = f"{path}:{_line_number(current)}"
                is_import, importer = False, (place, code.co_qualname, f"importing {imported}")
        elif is_import or not (code.co_filename.startswith(_WRAPPERS) or code.co_qualname == _COLLECTION):
            return None  # charact's own work, such as reading the use of the cores
    return None


def frames_from(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame of the running thread and those that called it, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _line_number(frame: FrameType) -> int:
    return frame.f_code.co_firstlineno if frame.f_lineno is None else frame.f_lineno


def line_of(frames: Iterable[FrameType], location: CodeLocation) -> tuple[str | None, tuple[CodeType, int] | None]:
    """Return the text of a location's line, which one of the frames runs, and the function's code and line number.

    Each is None if it cannot be read.
    """
    place = location[0].rpartition(":")
    for current in frames:
        path = current.f_code.co_filename
        if path.endswith(place[0]) and current.f_code.co_qualname == location[1]:
            line = int(place[2])
            return linecache.getline(path, line).strip()[:_MAX_TEXT] or None, (current.f_code, line)
    return None, None


def short_path(path: str) -> str:
    """Return a path relative to the main module's directory, if it is below."""
    root = os.path.join(sys.path[0], "") if sys.path else ""
    return path.removeprefix(root) if root else path


def line_of_program(pattern: str, files: Sequence[str] = ()) -> dict[str, Any]:
    """Return file, number and text of the first line that matches a regular expression; None each if no line does.

    It searches `files`, then those of the running functions, and skips comments.
    """
    running = dict.fromkeys(frame.f_code.co_filename for frame in program_frames())
    for file in (*files, *running):
        for number, text in enumerate(linecache.getlines(file), 1):
            if re.search(pattern, text) and not text.lstrip().startswith("#"):
                return {"file": short_path(file), "line": number, "text": text.strip()[:_MAX_TEXT]}
    return dict(NO_LINE)


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
    owners = [vars(each["self"]) for each in variables if hasattr(each.get("self"), "__dict__")]
    modules = [attributes["_modules"] for attributes in owners if isinstance(attributes.get("_modules"), dict)]
    scopes = *reversed(variables), *reversed(owners), *reversed(modules)
    return [(name, value) for scope in scopes for name, value in list(scope.items())
            if isinstance(name, str) and name.isidentifier() and name[0] != "_" and name != "self"]


def program_frames() -> Iterator[FrameType]:
    """Yield the frames of the running functions, innermost first, without those of charact and PyTorch."""
    for frame in frames_from(sys._getframe()):
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in _NOT_THE_PROGRAM:
            yield frame


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


class CreationPlaces:
    """File and line of the call that created each object, while the object lives."""

    def __init__(self) -> None:
        self._places: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()

    def note(self, obj: Any) -> None:
        """Note the line that creates an object; call it inside its `__init__`."""
        with contextlib.suppress(Exception):  # the program's own classes may refuse weak references or hashes
            creator = sys._getframe(1)  # the caller of its outermost `__init__`
            for frame in frames_from(creator):
                code = frame.f_code
                if code.co_name == "__init__" and frame.f_back is not None and any(
                        frame.f_locals.get(name) is obj for name in code.co_varnames[:1]):
                    creator = frame.f_back
            location = location_of(frames_from(creator))
            if location is not None and obj not in self._places:
                self._places[obj] = _place(location)

    def of(self, obj: Any) -> dict[str, Any]:
        """Return the file and the line; None for an object that was created before charact watched."""
        with contextlib.suppress(TypeError):
            return self._places.get(obj, _place(None))
        return _place(None)


def calling_place() -> dict[str, Any]:
    """Return file and line of the program's own code that calls PyTorch now; None for each if there is none."""
    return _place(location_of(frames_from(next(program_frames(), None))))


def _place(location: CodeLocation | None) -> dict[str, Any]:
    if location is None:
        return {"file": None, "line": None}
    file, _, line = location[0].rpartition(":")
    return {"file": file, "line": int(line)}
