"""`charact report`: which runs it reads, and which files it overwrites."""

from pathlib import Path

import pytest
from support import records

from charact import cli

pytestmark = pytest.mark.without_figures


def test_a_directory_of_runs_is_reported_and_the_report_overwritten(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    names = [records.write_inference(tmp_path / "runs", name=name).name for name in ("a", "b")]
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or False)
    assert cli.run(["report", "runs"]) == 0
    assert capsys.readouterr() == ("Wrote report.html\n", "")
    first = Path("report.html").read_text(encoding="utf-8")
    assert all(name in first for name in names)
    assert cli.run(["report", f"runs/{names[0]}", "--to", "report.html", "--open"]) == 0  # its own earlier report
    assert capsys.readouterr().err == "no browser could be started: open report.html yourself\n"
    assert names[1] not in Path("report.html").read_text(encoding="utf-8")
    assert opened == [(tmp_path / "report.html").resolve().as_uri()]


def test_another_file_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (page := tmp_path / "page.html").write_text("<!doctype html><title>mine</title>")
    run = records.write_inference(tmp_path / "runs")
    assert cli.run(["report", str(run), "--to", str(page)]) == 2
    assert "exists: --force overwrites it" in capsys.readouterr().err
    assert cli.run(["report", str(tmp_path), "--to", str(page), "--force"]) == 0
    assert "mine</title>" not in page.read_text(encoding="utf-8")
