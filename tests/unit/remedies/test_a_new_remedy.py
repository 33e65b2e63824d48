"""A remedy is one file, as the document says."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.plugins import add
from support.remedied import program

from charact.remedies import kinds
from charact.remedies.remedy import all_remedies

EXTENDING = (Path(__file__).parents[3] / "docs" / "extending.md").read_text(encoding="utf-8")


@pytest.fixture
def _added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    example = re.search(r"## A remedy\n.*?```python\n(.*?)```", EXTENDING, re.DOTALL)
    assert example is not None
    add(tmp_path / "more_remedies" / "algorithms.py", example[1], kinds, monkeypatch)
    all_remedies.cache_clear()
    yield
    all_remedies.cache_clear()


@pytest.mark.usefixtures("_added")
def test_the_documents_remedy_is_found_and_asks_for_its_setting() -> None:
    remedy = all_remedies()["any-algorithm"]
    (setting,) = remedy.settings(program({"deterministic": True}))
    assert setting.expected_frac == pytest.approx(0.04)
    assert remedy.settings(program()) == "deterministic algorithms are not asked for"


def test_the_guide_names_every_remedy() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "guides" / "try.md").read_text(encoding="utf-8")
    assert sorted(all_remedies().keys() - set(re.findall(r"`([\w-]+)`", guide))) == []
