import importlib.util
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

from charact.measure.script.hooks.import_hook import when_imported

NAME = "module_that_is_waited_for"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module on the path, which is not imported yet."""
    path = tmp_path / f"{NAME}.py"
    path.write_text("ready = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    finders = list(sys.meta_path)
    yield path
    sys.modules.pop(NAME, None)
    sys.meta_path[:] = finders


def test_it_is_called_once_and_leaves_everything_as_without(module: Path) -> None:
    called: list[bool] = []
    before = list(sys.meta_path)
    when_imported(NAME, lambda: called.append(sys.modules[NAME].ready))
    when_imported(NAME, lambda: called.append(False))()  # cancelled
    import json  # noqa: F401

    assert called == []
    imported = __import__(NAME)
    assert __import__(NAME) is imported
    assert called == [True]
    assert sys.meta_path == before
    assert type(imported.__loader__) is SourceFileLoader
    assert imported.__spec__.loader is imported.__loader__
    assert vars(imported.__loader__).keys() == {"name", "path"}
    assert imported.__spec__.origin == imported.__file__ == str(module)
    when_imported(NAME, lambda: called.append(True))
    assert called == [True, True]


def test_to_ask_for_it_is_not_to_import_it(module: Path) -> None:
    called: list[str] = []
    when_imported(NAME, lambda: called.append("imported"))
    spec = importlib.util.find_spec(NAME)
    assert spec is not None
    assert type(spec.loader) is SourceFileLoader
    assert called == []
    __import__(NAME)
    assert called == ["imported"]


def test_an_import_that_fails_fails_as_without_and_the_next_counts(module: Path) -> None:
    called: list[str] = []
    when_imported(NAME, lambda: called.append("imported"))
    module.write_text("raise ValueError('not yet')\n")
    with pytest.raises(ValueError, match="not yet"):
        __import__(NAME)
    assert called == []
    module.write_text("ready = 'with another length'\n")
    __import__(NAME)
    assert called == ["imported"]


def test_a_module_that_is_nowhere_is_not_found(module: Path) -> None:
    when_imported(f"{NAME}_nowhere", lambda: None)
    with pytest.raises(ModuleNotFoundError, match=f"No module named '{NAME}_nowhere'"):
        __import__(f"{NAME}_nowhere")
    assert importlib.util.find_spec(f"{NAME}_nowhere") is None
