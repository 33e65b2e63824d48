"""Modules of a folder are found by scanning, also those in features."""

from pathlib import Path

import pytest

from charact.core.plugins import module_names, modules_below, modules_in


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("views/parts/b", "views/parts/_helper", "views/parts/inner/d", "views/parts/inner/_e", "views/parts/a",
                 "feature/views/parts/c", "feature/views/parts/_g", "feature/views/other", "lacking/views/parts"):
        path = tmp_path / "scanned" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for folder in ("", "views", "views/parts", "views/parts/inner", "feature", "feature/views", "feature/views/parts"):
        (tmp_path / "scanned" / folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    return "scanned.views.parts"


def test_modules_of_a_folder_and_of_features_are_found_by_name(package: str) -> None:
    names = [f"{package}.a", f"{package}.b", "scanned.feature.views.parts.c", f"{package}.inner"]
    assert module_names(package) == names
    assert [module.__name__ for module in modules_in(package)] == names


def test_folders_below_are_searched(package: str) -> None:
    names = [f"{package}.a", f"{package}.b", f"{package}.inner.d", "scanned.feature.views.parts.c"]
    assert [module.__name__ for module in modules_below(package)] == names
