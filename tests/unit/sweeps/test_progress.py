"""The states of cases and their times: what ran last, what is expected, and what --retry runs again."""

import io
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console
from support import records

from charact.commands.sweep.run import Progress, table
from charact.commands.sweep.status import plan_rows, plan_summary
from charact.sweeps.definition import Definition, SweepCase
from charact.sweeps.directory import (
    CaseStatus,
    Outcome,
    State,
    SweepDirectory,
    expected_times,
    remaining_s,
    statuses,
    succeeded,
)

NOW = datetime(2026, 11, 25, 23, 55)
CASES = tuple(SweepCase("infer", (("threads", str(number)), ("workload", "mlp")), 1) for number in range(3))


def outcome(state: State, seconds: float, run: str | None = None) -> Outcome:
    return Outcome(state, int(state != "ok"), "it failed" if state == "failed" else "", run, seconds, "here",
                   "2026-11-25T10:00:00+0000", 1)


@pytest.fixture
def directory(tmp_path: Path) -> SweepDirectory:
    found = SweepDirectory(tmp_path / "trial")
    found.create(Definition("trial", CASES))
    return found


def test_a_plan_has_the_last_time_the_state_and_the_sum(directory: SweepDirectory) -> None:
    directory.write(CASES[0], outcome("ok", 10.0))
    directory.write(CASES[1], outcome("failed", 30.0))
    found = statuses(directory, CASES)
    assert [row[1:] for row in plan_rows(found)] == [
        ["ok", "10.0 s", ""], ["failed: it failed", "30.0 s", ""], ["waiting", "–", "about 20.0 s"]]
    assert plan_summary(found) == ["1 ok, 1 failed, 1 waiting; about 20.0 s left; 40.0 s spent"]


def test_nothing_is_expected_before_anything_ran(directory: SweepDirectory) -> None:
    found = statuses(directory, CASES)
    assert expected_times(found) == {}
    assert remaining_s(found) is None
    assert plan_summary(found) == ["3 waiting"]


def test_a_case_to_retry_waits_with_its_last_time_and_without_its_run(directory: SweepDirectory) -> None:
    run = records.write_record(directory.runs, name=f"trial-{CASES[1].id}")
    directory.write(CASES[0], outcome("ok", 10.0))
    directory.write(CASES[1], outcome("failed", 30.0, run.name))
    directory.forget(CASES[1])
    found = statuses(directory, CASES)
    assert [one.state for one in found] == ["ok", "waiting", "waiting"]
    assert directory.run_of(CASES[1]) is None
    assert expected_times(found) == {CASES[1]: 30.0, CASES[2]: 20.0}
    assert remaining_s(found) == 50.0


def drawn(found: list[CaseStatus], begun: dict[str, datetime]) -> list[str]:
    console = Console(file=io.StringIO(), width=100)
    console.print(table(found, begun, NOW))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_the_live_table_has_what_is_done_running_and_left(directory: SweepDirectory) -> None:
    directory.write(CASES[0], outcome("ok", 600.0))
    directory.write(CASES[1], outcome("failed", 600.0))
    lines = drawn(statuses(directory, CASES), {CASES[2].id: NOW - timedelta(minutes=1)})
    assert lines[0] == ("2 of 3 done: 1 ok, 1 failed, 1 waiting; about 10 min 0 s left, until about 2026-11-26 00:05")
    assert [line.split() for line in lines[1:]] == [
        ["running", "infer", "mlp", "threads=2", "since", "23:54:00"],
        ["failed", "infer", "mlp", "threads=1", "10", "min", "0", "s"],
        ["ok", "infer", "mlp", "threads=0", "10", "min", "0", "s"]]


def test_the_live_table_shows_a_few_of_many_cases(directory: SweepDirectory) -> None:
    many = [CaseStatus(SweepCase("infer", (("workload", f"w{number}"),), 1), "running", None) for number in range(30)]
    lines = drawn(many, {})
    assert lines[0] == "0 of 30 done: 30 running"
    assert len(lines) == 10
    assert "and 22 more" in lines[-1]


def test_on_a_terminal_the_table_is_drawn_at_each_case_and_problems_follow(
        directory: SweepDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    screen = io.StringIO()
    console = Console(file=screen, width=100, force_terminal=True)
    with Progress(directory, CASES, enabled=True, console=console) as progress:
        progress.begin(CASES[0])
        assert "0 of 3 done" in screen.getvalue()
        directory.write(CASES[0], outcome("failed", 10.0))
        progress.end(CASES[0])
        assert "1 of 3 done" in screen.getvalue()
        assert capsys.readouterr().err == ""
    assert capsys.readouterr().err.startswith("infer mlp threads=0: failed: it failed (")


def test_a_pipe_gets_a_line_a_case(directory: SweepDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(directory, CASES, enabled=True) as progress:
        progress.begin(CASES[0])
    with Progress(directory, CASES, enabled=False) as quiet:
        quiet.begin(CASES[1])
        directory.write(CASES[1], outcome("failed", 10.0))
        quiet.end(CASES[1])
    captured = capsys.readouterr()
    assert captured.out == "1/3 infer mlp threads=0\n"
    assert "infer mlp threads=1: failed: it failed" in captured.err


def test_a_published_run_whose_cases_all_failed_is_no_success(tmp_path: Path) -> None:
    assert succeeded(records.write_record(tmp_path))
    failed = records.write_record(tmp_path, name="failed", sizes=(), oom=True)
    assert not succeeded(failed)
