"""A section, an analysis, a kind of case and a tracker are one file each, and every view finds it."""

import json
import re
from pathlib import Path

import pytest
from support import records
from support.damage import change_manifest
from support.event_files import read
from support.plugins import add
from support.terminal import shown

from charact.commands import export as export_command
from charact.record.reader import load_run
from charact.views import kinds, sections
from charact.views.export import trackers
from charact.views.html.report import report
from charact.views.html.report import sections as drawn_sections
from charact.views.tensorboard.records import Records
from charact.views.tensorboard.scalars import write_scalars

pytestmark = pytest.mark.without_figures

DOCS = Path(__file__).parents[3] / "docs"
DESIGN, EXTENDING = ((DOCS / name).read_text(encoding="utf-8") for name in ("design.md", "extending.md"))
SECTION, OF_A_KIND, TRACKER = (
    re.search(rf"## {title}\n.*?```python\n(.*?)```", EXTENDING, re.DOTALL)[1]  # type: ignore[index]
    for title in ("A section", "A kind of case", "An experiment tracker"))
"""The examples of the document."""
KIND = '''"""Cases that were weighed."""

from charact.analysis.profile.case_summary import case_summary
from charact.views.case_kind import CaseKind, Overview
from charact.views.document import Card, Line, Number
from charact.views.html.elements.blocks import CASE
from charact.views.tables.model import table
from charact.views.html.elements.blocks import RUN


''' + OF_A_KIND


@pytest.fixture
def a_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(tmp_path / "more_sections" / "slowest.py", SECTION, sections, monkeypatch)


@pytest.fixture
def a_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(tmp_path / "more_kinds" / "weighing.py", KIND, kinds, monkeypatch)


@pytest.mark.usefixtures("a_section")
def test_a_section_is_one_file(tmp_path: Path) -> None:
    path = records.write_record(tmp_path / "runs", sizes=(32,))
    page = report([load_run(path)])
    order = [part.id for part in drawn_sections(load_run(path))]
    assert order.index("phases") < order.index("slowest") < order.index("operator-types")
    assert "the largest wall time" in page
    assert "slowest iteration 101 ms" in shown(path)
    tab = Records(str(path.parent)).sections(path.name)
    assert "Slowest iterations" in next(part["html"] for part in tab if part["id"] == "slowest")
    write_scalars(load_run(path), path)
    assert any(tag.endswith("/slowest_s") for tag in read(path))


@pytest.mark.usefixtures("a_kind")
def test_a_kind_of_case_is_one_file(tmp_path: Path) -> None:
    path = records.write_record(tmp_path / "runs", sizes=(32,))
    cases = load_run(path).manifest["cases"]
    cases[-1]["passes"] = {"weighing": {"status": "ok", "reason": None}}
    change_manifest(path, cases=cases)
    page = report([load_run(path)])
    assert "3 kg" in page
    assert "Weighed cases" in page
    assert f"weighed: {cases[-1]['case']}" in shown(path, width=200)
    assert any("3 kg" in part["html"] for part in Records(str(path.parent)).sections(path.name))
    assert "All weighed cases" in report([load_run(path), load_run(path)])


def test_a_tracker_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(tmp_path / "more_trackers" / "lines.py", TRACKER, trackers, monkeypatch)
    path = records.write_record(tmp_path / "runs", sizes=(32,))
    export_command.command(path, "lines", tmp_path / "scalars.jsonl")
    parameters, *points = map(json.loads, (tmp_path / "scalars.jsonl").read_text().splitlines())
    assert parameters["workload"] == "resnet50"
    assert any(point["tag"].endswith("/iteration_s") for point in points)


@pytest.mark.slow
def test_cases_of_an_unknown_kind_are_shown(tmp_path: Path) -> None:
    """A later version may have added the kind."""
    path = records.write_record(tmp_path / "runs", sizes=(32,))
    cases = load_run(path).manifest["cases"]
    cases[-1]["passes"]["weighing"] = {"status": "ok", "reason": None}
    change_manifest(path, cases=cases)
    assert str(cases[-1]["case"]) in shown(path, width=200)
    across = report([load_run(path), load_run(path)]).split("Every profiled case of every run</caption>")[1]
    assert str(cases[-1]["case"]) in across.split("</table>")[0]


def test_the_document_names_files_that_exist() -> None:
    root = Path(__file__).parents[3]
    named = set(re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", DESIGN))
    assert len(named) > 30
    places = [root, root / "charact", root / "charact" / "measure"]
    assert [path for path in sorted(named) if not any((place / path).exists() for place in places)] == []
