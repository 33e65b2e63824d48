"""One case in a process of its own: its exit status, its outcome, and what it leaves."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from charact.core.errors import UserError
from charact.sweeps.definition import Definition, SweepCase
from charact.sweeps.directory import (
    CaseStatus,
    Outcome,
    SweepDirectory,
    counts,
    expected_times,
    failure_of,
    now,
    run_name,
    statuses,
    succeeded,
)
from charact.sweeps.task import TAKEN, last_line, main, run_case

CASE, OTHER = SweepCase("infer", (("workload", "mlp"),), 1), SweepCase("infer", (("workload", "vgg16"),), 1)


@pytest.fixture
def directory(tmp_path: Path) -> SweepDirectory:
    found = SweepDirectory(tmp_path / "sweep")
    found.create(Definition("trial", (CASE, OTHER)))
    return found


def publish(directory: SweepDirectory, ending: str = "complete", **case: Any) -> Path:
    run = directory.runs / f"x-{CASE.id}-0"
    run.mkdir()
    (run / "run.json").write_text(json.dumps({"status": ending, "cases": [{"status": "ok"} | case]}))
    return run


@pytest.mark.parametrize(("ending", "case", "status", "state", "reason"), [
    (None, {}, 0, "ok", ""), (SystemExit(), {}, 0, "ok", ""), (SystemExit(0), {}, 0, "ok", ""),
    (SystemExit(2), {"status": "failed", "reason": "a\n b"}, 2, "failed", "failed: a b"),
    (SystemExit(2), {"status": "oom"}, 2, "failed", "oom"), (SystemExit(2), None, 2, "failed", "the last line"),
    (SystemExit("text"), {}, 1, "failed", "the last line"), (SystemExit(128), None, 128, "failed", "the last line"),
    (SystemExit(129), {"ending": "interrupted"}, 129, None, ""), (SystemExit(143), None, 143, None, ""),
])
def test_endings_of_a_case(directory: SweepDirectory, monkeypatch: pytest.MonkeyPatch, ending: SystemExit | None,
                           case: dict[str, Any] | None, status: int, state: str | None, reason: str) -> None:
    seen = []

    def run(name: str, run_name: str) -> None:
        seen.append((name, run_name, sys.argv))
        if case is not None:
            publish(directory, **case)
        directory.log(CASE).write_text("first\nthe last line\n \n")
        if ending is not None:
            raise ending

    (directory.runs / f".partial-y-{CASE.id}-1").mkdir()
    monkeypatch.setattr(runpy, "run_module", run)
    monkeypatch.setattr(sys, "argv", ["task", str(directory.path), CASE.id])
    assert main() == status
    assert seen == [("charact", "__main__", ["charact", "infer", "mlp", f"--out={directory.runs}",
                                             f"--name=infer-mlp-{CASE.id}", "--quiet"])]
    outcome = directory.outcome(CASE)
    assert (outcome and (outcome.state, outcome.reason, outcome.exit_status, outcome.attempts)) == (
        state and (state, reason, status, 1))
    assert [path.name for path in directory.runs.iterdir()] == (
        [f"x-{CASE.id}-0"] if case is not None and state else [])
    assert run_case(directory, CASE) == (0 if state else status)
    assert len(seen) == (1 if state else 2)


def test_a_case_runs_once(directory: SweepDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runpy, "run_module", lambda *_, **__: pytest.fail("it ran"))
    with directory.locked(CASE.id) as is_ours:
        assert is_ours
        assert (directory.state(CASE), directory.state(OTHER)) == ("running", "waiting")
        assert run_case(directory, CASE) == TAKEN
    assert directory.is_locked(CASE.id) is False
    publish(directory).joinpath("run.json").write_text("[]")
    with pytest.raises(BaseException, match="it ran"):  # an incomplete run is removed
        run_case(directory, CASE)
    assert list(directory.runs.iterdir()) == []
    run = publish(directory)
    assert run_case(directory, CASE) == 0  # published, but killed before its outcome was written
    found = directory.outcome(CASE)
    assert found is not None
    assert (found.state, found.run) == ("ok", run.name)
    directory.end(CASE, "killed", now(), None, "by SIGKILL", run)
    again = directory.outcome(CASE)
    assert again is not None
    assert (again.attempts, directory.state(CASE), directory.is_done(CASE)) == (2, "killed", False)


def test_the_last_line_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_line(log) == "its output is missing"
    for text, expected in ((b"", "it printed nothing"), (b"\n \n", "it printed nothing"), (b"a\nb\xff\n\n", "b\ufffd"),
                           (b"x" * 501, "x" * 500)):
        log.write_bytes(text)
        assert last_line(log) == expected


def test_cases_of_a_run_that_failed(directory: SweepDirectory) -> None:
    run = publish(directory)
    for cases, expected, ok in (
            ([], "", False), ([{"status": "ok"}], "", True), ([{"status": "ok"}, {"status": "oom"}], "oom", True),
            ([{"status": "failed", "reason": "a"}, {"status": "oom", "reason": "b"}], "failed: a", False),
            ([{"reason": "a"}], "a", False)):
        (run / "run.json").write_text(json.dumps({"cases": cases}))
        assert (failure_of(run), succeeded(run)) == (expected, ok)


def test_directories_of_other_sweeps_are_refused(directory: SweepDirectory, tmp_path: Path) -> None:
    directory.create(Definition("trial", (OTHER,)))
    assert directory.definition() == Definition("trial", (OTHER,))
    file = directory.path / "sweep.json"
    content = file.read_text()
    with pytest.raises(UserError, match="is the directory of the sweep 'trial', not of 'other': --out names another"):
        directory.create(Definition("other", (CASE,)))
    for text, message in ((content.replace('"format": 1', '"format": 2'), "has format 2, this version reads 1"),
                          ("{", "is damaged")):
        file.write_text(text)
        with pytest.raises(UserError, match=message):
            directory.definition()
    (tmp_path / "empty").mkdir()
    SweepDirectory(tmp_path / "empty").create(Definition("a", (CASE,)))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for name in ("full", "full/file"):
        with pytest.raises(UserError, match="exists and is no directory of a sweep"):
            SweepDirectory(tmp_path / name).create(Definition("a", (CASE,)))
    with pytest.raises(UserError, match="is no directory of a sweep: name the one"):
        SweepDirectory(tmp_path / "full").definition()


def test_expected_times_are_means_of_the_most_similar_cases() -> None:
    def case(command: str, workload: str, node: str = "", threads: int = 1) -> SweepCase:
        options = {"workload": workload, "threads": str(threads)} | ({"node": node} if node else {})
        return SweepCase(command, tuple(sorted(options.items())), 1)

    def ended(state: Any, seconds: float, *args: Any) -> CaseStatus:
        return CaseStatus(case(*args), state, Outcome(state, 0, "", None, seconds, "h", "t", 1))

    def waiting(*args: Any) -> CaseStatus:
        return CaseStatus(case(*args), "waiting", None)

    found = [ended("ok", 1, "infer", "a", "x"), ended("failed", 3, "infer", "a", "y"), ended("ok", 8, "infer", "b"),
             ended("killed", 100, "infer", "b", "", 2), ended("ok", 20, "train", "a"),
             ended("waiting", 40, "train", "a", "", 2)]
    asked = {waiting("infer", "a", "x", 9): 1, waiting("infer", "a", "z"): 2, waiting("infer", "c"): 4,
             waiting("train", "a", "", 3): 30, waiting("memory", "a"): 72 / 5}
    times = expected_times([*found, *asked])
    assert times == {status.case: expected for status, expected in asked.items()} | {
        found[3].case: 8, found[5].case: 40}
    assert counts(found) == {"ok": 3, "failed": 1, "killed": 1, "running": 0, "waiting": 1}


def test_names_of_runs_are_short_and_end_with_the_case(directory: SweepDirectory) -> None:
    long = SweepCase("bricks run", (("suite", "a/b c." + "d" * 99),), 1)
    assert run_name(long) == f"{('bricks-run-a-b-c.' + 'd' * 99)[:60]}-{long.id}"
    cut = SweepCase("infer", (("w", "a" * 53), ("x", "b")), 1)  # a dash at the cut is dropped
    assert run_name(cut) == f"infer-{'a' * 53}-{cut.id}"
    assert [status.state for status in statuses(directory, (CASE, OTHER))] == ["waiting", "waiting"]
