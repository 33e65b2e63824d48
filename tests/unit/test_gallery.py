"""The gallery in reports/: as new as the records' schema, complete, and linked from its page."""

import re
import shutil
from pathlib import Path

import make_gallery
import pytest
from make_gallery import INDEX, LIST, galleries, index_page, items, problems
from support.pages import Page

from charact.record.reader import load_run
from charact.record.schema import SCHEMA_VERSION
from charact.views.html.report import report


def test_the_gallery_is_up_to_date() -> None:
    """If not, the message has the command that renews it."""
    assert problems() == []


@pytest.mark.without_figures
@pytest.mark.parametrize("machine", galleries())
def test_the_report_has_the_texts_that_its_record_gives_today(machine: str) -> None:
    """A gallery that older code drew fails, with the command that renews it; the record has no trace for a timeline."""
    folder = make_gallery.HERE / machine
    stored, drawn = (_sections(page) for page in (
        (folder / "report.html").read_text(encoding="utf-8"), report([load_run(folder / make_gallery.RECORD)])))
    stored.pop("timeline", None)
    assert list(stored) == list(drawn), f"make gallery MACHINE={machine}"
    for name, words in drawn.items():
        assert stored[name] == words, f"{name}: make gallery MACHINE={machine}"


def _sections(page: str) -> dict[str, str]:
    """Return the words of each section of a page of one run, without those of figures."""
    page = re.sub(r"<figure.*?</figure>", "", page, flags=re.DOTALL)
    parts = re.findall(r'<section class="ch-section" id="r1-([a-z-]+)">(.*?)</section>', page, re.DOTALL)
    return {name: Page(html).words for name, html in parts}


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "reports"
    shutil.copytree(make_gallery.HERE, found, ignore=shutil.ignore_patterns("*.parquet", "*.py"))
    monkeypatch.setattr(make_gallery, "HERE", found)
    return found


def test_an_older_schema_is_found(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_gallery, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
    assert problems() == [f"reports/{name} has schema {SCHEMA_VERSION}, records have {SCHEMA_VERSION + 1}: "
                          f"make gallery MACHINE={name}" for name in galleries()]


def test_missing_unlisted_and_unlinked_reports_are_found(copy: Path) -> None:
    name = next(iter(galleries()))
    (copy / name / "report.html").rename(copy / name / "other.html")
    assert problems() == [f"reports/{name}/report.html is missing: make gallery MACHINE={name}",
                          f"reports/{name}/other.html is not in {LIST}: make gallery MACHINE={name}, or remove it"]
    (copy / name / "other.html").rename(copy / name / "report.html")
    page = copy / INDEX
    page.write_text(page.read_text().replace(f'href="{name}/report.html"', ""))
    assert f"reports/{INDEX} has no link to {name}/report.html: python reports/make_gallery.py --index" in problems()
    page.unlink()
    assert any("has no link" in problem for problem in problems())


def test_the_page_has_every_command_and_escapes_it() -> None:
    listed = {"here": {"machine": "<b>", "charact": "1", "torch": "2", "day": "2026-11-25", "reports": [
        {"file": "a.html", "title": "A & B", "seconds": 3, "commands": ["charact list", "charact x > 'y'"]}]}}
    page = index_page(listed)
    assert "&lt;b&gt;" in page
    words = Page(page).words
    assert "charact list" in words
    assert "charact x > 'y'" in words
    assert "have not been repeated on this machine yet" in words


def test_every_command_exists() -> None:
    from support.documents import unknown_option

    from charact.cli import build_command

    root = build_command()
    for item in items(Path("data")):
        for command in item.commands:
            assert unknown_option(root, command.split()[1:]) is None, command
