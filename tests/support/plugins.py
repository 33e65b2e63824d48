"""Files that are added to a package while a test runs."""

import sys
from pathlib import Path
from types import ModuleType

import pytest


def add(path: Path, source: str, package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a file into a folder that belongs to a package while the test runs."""
    path.parent.mkdir()
    path.write_text(source, encoding="utf-8")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(path.parent)])
    name = f"{package.__name__}.{path.stem}"
    monkeypatch.setitem(sys.modules, name, None)  # removed after the test
    monkeypatch.delitem(sys.modules, name)
