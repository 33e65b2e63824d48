"""The states of cases and their times: what ran last, what is expected, and what --retry runs again."""

from pathlib import Path

import pytest
from support import records

from charact.commands.sweep.status import plan_rows, plan_summary
from charact.sweeps.definition import Definition, SweepCase
from charact.sweeps.directory import Outcome, State, SweepDirectory, succeeded
from charact.sweeps.progress import expected_times, remaining_s, statuses

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


def test_a_published_run_whose_cases_all_failed_is_no_success(tmp_path: Path) -> None:
    assert succeeded(records.write_record(tmp_path))
    failed = records.write_record(tmp_path, name="failed", sizes=(), oom=True)
    assert not succeeded(failed)
