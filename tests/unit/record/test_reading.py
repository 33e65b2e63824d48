"""Runs that are read or shown: what is found in them, and what is not."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from support import records

from charact.core.errors import UserError
from charact.record import in_progress, manifest, reader, tables
from charact.record.manifest import typed_entry
from charact.record.presentable import presentable, redacted
from charact.record.writer import RunWriter

CASE = {"iterations": [{"iteration": 0, "phase": "forward", "part": "a\x1b", "host_s": 2.0, "device_s": None}]}


def entry(case: str = "one", **changes: Any) -> dict[str, Any]:
    return records.case_entry("mlp", 8, "train") | {"case": case} | changes


@pytest.mark.parametrize(("text", "process"), [("123", 123), ("", None), ("x", None), (None, None)])
def test_the_writer_of_a_run(tmp_path: Path, text: str | None, process: int | None) -> None:
    if text is not None:
        (tmp_path / "lock").write_text(text)
    assert in_progress.writer_of(tmp_path) == process


def test_directories_that_were_killed_before_their_manifest(tmp_path: Path) -> None:
    for name, files, removed in ((".partial-a", ["lock", "parts/.0123456789abcdef"], True), (".partial-b", [], True),
                                 (".partial-c", ["run.json"], False), ("d", [], False), (".partial-e", None, False)):
        for file in files or ():
            (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / file).touch()
        if files == []:
            (tmp_path / name).mkdir()
        assert in_progress.remove_unbegun(tmp_path / name) is removed
        assert (tmp_path / name).exists() is (files is not None and not removed)


@pytest.mark.parametrize(("error", "text"), [
    (KeyError("a"), "no 'a'"), (ValueError("a\n  b"), "a b"), (ValueError(), "ValueError"),
    (ValueError("x" * 200), "x" * 200), (ValueError("x" * 201), "x" * 200 + "…"), (ValueError("\udce9"), r"\xe9")])
def test_errors_in_one_line(error: Exception, text: str) -> None:
    assert manifest.one_line(error) == text


def test_facts_that_a_command_needs() -> None:
    facts = {"options": {"a": 0, "b": None}, "machine": {}, "cases": [{"case": "c", "status": "ok"}]}
    manifest.check_holds(facts, Path("r"), options=("a",))
    with pytest.raises(UserError, match=r"^r/run\.json lacks options\.b, machine\.x: "):
        manifest.check_holds(facts, Path("r"), options=("a", "b"), machine=("x",))
    with pytest.raises(UserError, match=r"^case c of r is damaged \(why\): "):
        manifest.check_holds(facts | {"cases": [{"case": "c", "status": "damaged", "reason": "why"}]}, Path("r"))


def test_a_run_has_its_cases_tables_and_traces(tmp_path: Path) -> None:
    run = records.run_of(tmp_path, (entry("one\x1b"), CASE), (entry("two", passes={}), {}))
    assert [each.case for each in run.entries_with("timing")] == ["one\x1b"]
    assert run.passes("one\x1b")["flop"]["status"] == "ok"
    assert repr(run) == f"<Run {run.path} (one\x1b: ok, two: ok)>"
    with pytest.raises(KeyError, match="three"):
        run.entry("three")
    with pytest.raises(AttributeError, match="a run has no 'iteration': its tables are"):
        _ = run.iteration
    assert {"iterations", "cases"} <= set(dir(run))
    for each in (run, shown := presentable(run), kept := redacted(run)):
        assert each.iterations["host_s"].tolist() == [2.0]
        assert each.trace(each.entries[0].case) is None
    (run.path / "trace").mkdir()
    path = run.path / "trace" / in_progress.trace_name("one\x1b")
    path.touch()
    assert run.trace("one\x1b") == shown.trace("one␛") == kept.trace("one\x1b") == path
    assert run.trace("two") is shown.trace("two") is None
    assert (shown.iterations["part"].tolist(), kept.iterations["part"].tolist()) == (["a␛"], ["a\x1b"])
    assert (shown.texts("part", ["\x1b"]), kept.texts("part", ["\x1b"]), run.texts("part", ("b",))) == (
        ["␛"], ["\x1b"], ["b"])
    assert (presentable(run), presentable(shown)) == (shown, shown)
    assert presentable(run) is presentable(shown) is shown
    assert shown.table("iterations") is shown.table("iterations")
    before = shown.table("iterations")
    shown.release()
    assert run._tables == {}
    assert run.found == {}
    assert shown.table("iterations") is not before
    run.manifest["name"] = "other"
    assert presentable(run).manifest["name"] == "other"


def test_cases_that_differ_in_control_characters_only_are_not_shown(tmp_path: Path) -> None:
    run = records.run_of(tmp_path, (entry("a\x1b"), CASE), (entry("a␛"), CASE))
    with pytest.raises(UserError, match="has cases whose names differ in control characters only"):
        presentable(run)


def test_runs_that_cannot_be_read(tmp_path: Path) -> None:
    run = records.run_of(tmp_path, (entry(), CASE))
    hidden = run.path.with_name(f".partial-{run.path.name}")
    with pytest.raises(UserError, match=f"^{hidden} has ended: its run is {run.path}$"):
        reader.load_run(hidden)
    hidden.mkdir()
    for path in (hidden, tmp_path / "absent", tmp_path / ".partial-absent"):
        with pytest.raises(UserError, match=r"holds no run\.json: name a run directory"):
            reader.load_run(path)
    (run.path / "iterations.parquet").rename(run.path / "operators.parquet")
    again = reader.load_run(run.path)
    with pytest.raises(UserError, match=r"iterations\.parquet is missing, but was part of the record"):
        again.table("iterations")
    with pytest.raises(UserError, match=r"operators\.parquet was not written with its run"):
        again.table("operators")
    assert again.table("layers").empty
    facts = json.loads((run.path / "run.json").read_text())
    in_progress.write_manifest(run.path, facts | {"status": "running"})
    with pytest.raises(UserError, match="was not finished: read it with charact report --partial"):
        reader.load_run(run.path)
    assert reader.load_run(run.path, partial=True).partial is True


@pytest.mark.parametrize(("least", "most", "values", "problem"), [
    (0, 5, [0.0, 5.0, None], None), (0, 5, [-0.1], "-0.1 is less than 0"), (0, 5, [5.1], "5.1 is more than 5"),
    (None, 5, [-5.0], None), (None, 5, [-6.0], "-6.0 is less than -5"), (None, None, [1e30, -1e30], None),
    (None, None, [1.1e30], "1.1e+30 is more than 1e+30"),
    (0, 5, [None], None), (0, 5, [], None), (0, None, [float("inf")], "a number is not finite")])
def test_numbers_of_a_column(least: float | None, most: float | None, values: list[float | None],
                             problem: str | None) -> None:
    column: Any = SimpleNamespace(type="float64", least=least, most=most)
    assert tables._number_problem(pa.chunked_array([pa.array(values, pa.float64())]), column) == problem


@pytest.mark.parametrize(("changes", "nothing"), [
    ({"status": "ok"}, False), ({"status": "running"}, True), ({"status": "oom"}, False),
    ({"status": "running", "passes": {"training": {"status": "ok", "num_epochs": 1}}}, False),
    ({"status": "running", "passes": {"bricks": {"status": "ok", "num_rounds": 2}}}, False),
    ({"status": "running", "passes": {"training": {"status": "ok", "num_epochs": 0}}}, True)])
def test_whether_a_record_has_anything(tmp_path: Path, changes: dict[str, Any], nothing: bool) -> None:
    writer = RunWriter(tmp_path, "r", {})
    assert writer.holds_nothing is True
    writer.add_case(typed_entry(entry(**changes)), {})
    assert writer.holds_nothing is nothing
    found = writer.entry("one")
    assert found is not None
    assert (found.case, writer.entry("two")) == ("one", None)
    writer.discard()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("value", "problem"), [
    (2**63 - 1, None), (2**63, "is too large for an integer"), (-2**63 + 1, None), (-2**63, "is too large"),
    (1e308, None), (float("nan"), "nan is not a finite number"), ([{"a": [float("-inf")]}], "-inf is not a finite"),
    ("nan", None), (True, None)])
def test_values_that_no_manifest_has(value: Any, problem: str | None) -> None:
    if problem is None:
        manifest._check_values({"a": value})
    else:
        with pytest.raises(ValueError, match=problem):
            manifest._check_values({"a": value})


def test_the_depth_of_a_manifest_is_limited() -> None:
    nested: list[Any] = []
    for _ in range(manifest._MOST_DEPTH):
        nested = [nested]
    manifest._check_values(nested)
    with pytest.raises(ValueError, match=f"nested more than {manifest._MOST_DEPTH} deep"):
        manifest._check_values([nested])
