"""Lines of the program's own code that create its optimizers and data loaders. No torch in here."""

import contextlib
import sys
import weakref
from types import FrameType
from typing import Any

from charact.measure.script.spans.stack_sampler import location_of


class CreationPlaces:
    """File and line of the call that created each object, while the object lives."""

    def __init__(self) -> None:
        self._places: weakref.WeakKeyDictionary[Any, tuple[str, int]] = weakref.WeakKeyDictionary()

    def note(self, obj: Any) -> None:
        """Note the line that creates an object; call it inside its `__init__`."""
        with contextlib.suppress(Exception):  # the program's own classes may refuse weak references or hashes
            location = location_of(_creator(obj))
            if location is not None and obj not in self._places:
                file, _, line = location[0].rpartition(":")
                self._places[obj] = file, int(line)

    def of(self, obj: Any) -> dict[str, Any]:
        """Return the file and the line; None for an object that was created before charact watched."""
        place: tuple[str | None, int | None] = None, None
        with contextlib.suppress(TypeError):
            place = self._places.get(obj, place)
        return {"file": place[0], "line": place[1]}


def _creator(obj: Any) -> FrameType:
    """Return the frame that called the object's class, outside of the `__init__` of this class and its bases."""
    creator = sys._getframe(2)
    frame: FrameType | None = creator
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__init__" and frame.f_back is not None and any(
                frame.f_locals.get(name) is obj for name in code.co_varnames[:1]):
            creator = frame.f_back
        frame = frame.f_back
    return creator


def calling_place() -> dict[str, Any]:
    """Return file and line of the program's own code that calls PyTorch now; None for each if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in ("charact", "torch"):
        frame = frame.f_back
    location = None if frame is None else location_of(frame)
    file, _, line = ("", "", "") if location is None else location[0].rpartition(":")
    return {"file": file, "line": int(line)} if line.isdecimal() else {"file": None, "line": None}
