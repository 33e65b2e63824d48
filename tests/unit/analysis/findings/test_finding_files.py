"""A finding is one function, found by scanning, and the documents name all."""

import re
from pathlib import Path

import pytest
from support.plugins import add
from support.watched_programs import watched_program

import charact.analysis.findings
from charact.analysis.findings import findings
from charact.core.plugins import modules_in

ROOT = Path(__file__).parents[4]
EXTENDING, GUIDE = (ROOT / "docs" / name for name in ("extending.md", "guides/slow-training.md"))
TIMES = {"forward": 0.02, "backward": 0.04, "update": 0.006}


def test_the_guide_names_every_finding() -> None:
    names = {name for module in modules_in("charact.analysis.findings") for name, value in vars(module).items()
             if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__}
    assert len(names) > 30
    words = set(re.findall(r"`(\w+)`", GUIDE.read_text(encoding="utf-8")))
    assert sorted(names - words) == []


@pytest.mark.parametrize("is_on", [True, False])
def test_a_finding_is_one_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_on: bool) -> None:
    example = re.search(r"## A finding\n.*?```python\n(.*?)```", EXTENDING.read_text(encoding="utf-8"), re.DOTALL)
    assert example is not None
    add(tmp_path / "more_findings" / "reproducibility.py", example[1], charact.analysis.findings, monkeypatch)
    rows = findings(watched_program(tmp_path / "runs", TIMES, settings={"deterministic": is_on}))
    assert list(rows["finding"]) == ["deterministic"] * is_on
    if is_on:
        assert rows["recoverable_s"].item()[0] == 0.0
        assert rows["recoverable_s"].item()[1] == pytest.approx(100 * 0.3 * 0.04, rel=0.02)
