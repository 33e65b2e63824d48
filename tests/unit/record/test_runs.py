"""Runs that a pattern names: which are found, in which order, and what is an error."""

import json
from pathlib import Path

import pytest
from support import records

import charact
from charact.core.errors import UserError
from charact.record.in_progress import write_manifest
from charact.record.runs import run_directories, started


def run_at(out: Path, name: str, time: str, status: str = "complete") -> Path:
    path = records.write_record(out, name=name, sizes=(32,), modes=("infer",))
    manifest = json.loads((path / "run.json").read_text(encoding="utf-8"))
    write_manifest(path, manifest | {"started": time, "status": status})
    return path


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    out = tmp_path / "runs"
    run_at(out, "late", "2026-11-21T12:00:00+0200")       # 10:00 UTC
    run_at(out / "nested", "early", "2026-11-21T09:00:00+0000")
    run_at(out, "between", "2026-11-21T04:30:00-0500")    # 9:30 UTC
    return out


def names(pattern: str | Path) -> list[str]:
    return [run.manifest["name"] for run in charact.load_runs(pattern)]


def test_runs_are_in_the_order_in_which_they_started(runs: Path) -> None:
    assert names(runs) == ["early", "between", "late"]
    assert len(charact.load_runs(runs)[0].iterations)


def test_a_pattern_names_runs_and_directories_of_runs(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert names(f"{runs}/*late*") == ["late"]
    assert names(f"{runs}/n*") == ["early"]
    assert names(f"{runs}/**") == ["early", "between", "late"]  # each once
    (one,) = runs.glob("*between*")
    assert names(one) == ["between"]
    monkeypatch.setenv("HOME", str(runs.parent))
    assert names("~/runs/*late*") == ["late"]


def test_a_directory_may_be_named_like_a_pattern(tmp_path: Path) -> None:
    run_at(tmp_path / "[x]", "odd", "2026-11-21T10:00:00+0000")
    assert names(tmp_path / "[x]") == ["odd"]


def test_unfinished_and_interrupted_runs_are_left_out(runs: Path) -> None:
    run_at(runs, "stopped", "2026-11-21T13:00:00+0000", "interrupted")
    (one,) = runs.glob("*late*")
    one.rename(one.with_name(f".partial-{one.name}"))
    assert names(runs) == ["early", "between"]


@pytest.mark.parametrize("pattern", ["absent", "absent/*", ""])
def test_a_pattern_without_complete_runs_is_an_error(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(UserError, match="names no complete run: give a directory of runs or a pattern"):
        charact.load_runs(tmp_path / "x" / pattern)


def test_a_corrupt_run_is_an_error(runs: Path) -> None:
    (one,) = runs.glob("*late*")
    (one / "run.json").write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match="late"):
        charact.load_runs(runs)


def test_a_run_without_a_valid_time_is_the_oldest() -> None:
    assert started(None) == started("yesterday") < started("2026-11-21T10:00:00")


def test_directories_of_records_below_a_folder(tmp_path: Path) -> None:
    mark, others = '{"schema_version": 1}', '{"version": 1}'
    for name, content in {
            "b/run.json": mark, "b/inner/run.json": mark, "a/run.json": others, "a/c/run.json": mark,
            "d/run.json": others, "d/t.parquet": "", ".partial-e/run.json": mark, ".git/f/run.json": mark,
            ".partial-ranks-g/rank-00000/h/run.json": mark, "i/run.json": " " * 4096 + mark,
            "j/run.json": " " * 4000 + mark, "k/other.json": mark, "k/l/run.json": mark}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    found = [str(path.relative_to(tmp_path)) for path in run_directories(tmp_path)]
    assert found == [".partial-e", "a/c", "b", "d", "j", "k/l"]
    (tmp_path / "a/run.json").unlink()
    (tmp_path / "a/run.json").symlink_to("absent")  # listed, so that its error is shown
    assert tmp_path / "a" in list(run_directories(tmp_path))
    errors: list[OSError] = []
    assert list(run_directories(tmp_path / "absent", errors.append)) == []
    assert [error.filename for error in errors] == [str(tmp_path / "absent")]


def test_the_summary_of_runs_has_a_row_for_each_case_of_each_run(runs: Path) -> None:
    found = charact.load_runs(runs)
    table = found.summary()
    assert table["run"].tolist() == [run.run_id for run in found]
    assert table.columns[0] == "run"
    assert table["case"].tolist() == [entry.case for run in found for entry in run.entries]
    assert [run._tables for run in found] == [{}] * 3
