"""What one worker of a session makes for all of them."""

import json
import os
from collections.abc import Callable
from typing import TypeVar

import pytest
from filelock import FileLock

Made = TypeVar("Made")


def made_once(place: pytest.TempPathFactory, name: str, make: Callable[[], Made]) -> Made:
    """Return what `make` returns, which JSON can hold: the first worker that needs it calls it."""
    own = place.getbasetemp()
    path = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / f"{name}.json"
    with FileLock(f"{path}.lock"):
        if not path.exists():
            path.write_text(json.dumps(make()), encoding="utf-8")
        made: Made = json.loads(path.read_text(encoding="utf-8"))
    return made
