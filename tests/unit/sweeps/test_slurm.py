"""Jobs of a sweep on Slurm: which are submitted, with which options, and which cases are lost."""

import contextlib
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from charact.core.errors import UserError
from charact.sweeps import slurm
from charact.sweeps.definition import Definition, SweepCase
from charact.sweeps.directory import SweepDirectory, now

CASES = tuple(SweepCase("infer", (("node", node), ("workload", name)) if node else (("workload", name),), 1)
              for node, name in (("", "a"), ("gpu", "b"), ("", "c"), ("gpu", "d")))


@pytest.fixture
def directory(tmp_path: Path) -> SweepDirectory:
    found = SweepDirectory(tmp_path / "sweep")
    found.create(Definition("trial", CASES))
    return found


class Queue:
    """Slurm whose jobs exist for some queries, and end as `endings` says by the name of the workload."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: SweepDirectory, endings: dict[str, Any]) -> None:
        self.directory, self.endings, self.time_s = directory, endings, 0.0
        self.submitted: list[tuple[str, dict[str, Any]]] = []
        monkeypatch.setattr(slurm.shutil, "which", lambda name: f"/bin/{name}")
        monkeypatch.setattr(slurm.subprocess, "run", self.squeue)
        monkeypatch.setattr(slurm.time, "sleep", self.sleep)
        monkeypatch.setattr(slurm.time, "monotonic", lambda: self.time_s)
        monkeypatch.setattr(slurm._Jobs, "submit", lambda jobs, *what: self.submit(jobs, *what))

    def submit(self, jobs: Any, cases: list[SweepCase], parameters: dict[str, Any]) -> None:
        for case in cases:
            self.submitted.append((dict(case.options)["workload"], parameters))
            jobs._jobs[case.id] = f"7_{dict(case.options)['workload']}"

    def squeue(self, *_: Any, **__: Any) -> Any:
        alive = [f"7_{name}" for name, (end_s, _) in self.endings.items() if self.time_s < end_s]
        return subprocess.CompletedProcess([], 0, " \n".join(alive), "")

    def sleep(self, seconds: float) -> None:
        self.time_s += seconds
        for case in CASES:
            end_s, state = self.endings[dict(case.options)["workload"]]
            if state and self.time_s >= end_s and not self.directory.is_done(case):
                self.directory.end(case, state, now(), 0, "")


def test_all_cases_are_submitted_and_those_without_an_outcome_are_lost_after_a_while(
        directory: SweepDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(monkeypatch, directory, {"a": (5, "ok"), "b": (3, None), "c": (4, "failed"), "d": (9, None)})
    changes: list[float] = []
    lost = slurm.run_cases(directory, CASES, {"time": "60", "mem": "1"}, {"gpu": {"mem": "2"}},
                           lambda: changes.append(queue.time_s))
    general, gpu = {"time": "60", "mem": "1"}, {"time": "60", "mem": "2"}
    assert queue.submitted == [("a", general), ("c", general), ("b", gpu), ("d", gpu)]
    assert lost == [CASES[1], CASES[3]]
    # Gone from the query after 9 s on, and lost when more than 15 s have passed.
    assert changes == [float(second) for second in range(9 + 15 + 2)]


def test_a_case_that_is_locked_or_queued_again_is_not_lost(
        directory: SweepDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(monkeypatch, directory, {"a": (0, None), "b": (0, None), "c": (0, None), "d": (0, None)})
    monkeypatch.setattr(SweepDirectory, "is_locked", lambda _, name: name == CASES[0].id and queue.time_s % 10 == 0)

    def end() -> None:
        if queue.time_s == 25:
            directory.end(CASES[0], "ok", now(), 0, "")

    assert slurm.run_cases(directory, CASES[:1], {}, {}, end) == []
    assert queue.time_s == 25


def test_without_sbatch_nothing_is_submitted(directory: SweepDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm.shutil, "which", lambda _: None)
    with pytest.raises(UserError, match="there is no sbatch"):
        slurm.run_cases(directory, CASES, {}, {}, lambda: None)


@pytest.mark.parametrize(("status", "output", "expected"), [
    (0, "", ""), (0, "1_0\n3_1\n", "ac"), (0, "1_00 91_0\n3_1", "c"), (1, "1_0", "ac"), (1, "", "ac")])
def test_queued_cases_are_those_with_a_job_alive_or_all_without_an_answer(
        directory: SweepDirectory, monkeypatch: pytest.MonkeyPatch, status: int, output: str, expected: str) -> None:
    jobs = {CASES[0].id: "1_0", CASES[2].id: "3_1"}
    slurm._Jobs(directory)
    (directory.path / "slurm" / "jobs.json").write_bytes(msgspec.json.encode(jobs))
    monkeypatch.setattr(slurm.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=status, stdout=output))
    found = slurm._Jobs(directory).queued(CASES)
    assert found == {case.id for case in CASES if dict(case.options)["workload"] in expected}
    (directory.path / "slurm" / "jobs.json").write_text("{")
    assert slurm._Jobs(directory).queued(CASES) == set()


class TestSubmission:
    """With submitit's executor replaced."""

    @pytest.fixture
    def updated(self, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
        submitit = pytest.importorskip("submitit")
        executor, found = submitit.slurm.slurm.SlurmExecutor, list[dict[str, Any]]()
        monkeypatch.setattr(executor, "affinity", classmethod(lambda _: 1))
        monkeypatch.setattr(executor, "batch", lambda _: contextlib.nullcontext())
        monkeypatch.setattr(executor, "update_parameters", lambda _, **values: found.append(values))
        monkeypatch.setattr(executor, "submit", lambda _, job: SimpleNamespace(job_id=f"job of {job._case_id}"))
        return found

    def test_options_are_converted_and_jobs_are_stored(
            self, directory: SweepDirectory, updated: list[dict[str, Any]]) -> None:
        jobs = slurm._Jobs(directory)
        jobs.submit([], {})
        assert updated == []
        jobs.submit(CASES[:2], {"partition": "gpu", "exclusive": "TRUE", "nodes": "2", "no_kill": "false",
                                "gres_flags": "1.5", "job_name": "mine"})
        assert updated == [{"time": 60, "job_name": "mine", "partition": "gpu", "exclusive": True, "nodes": 2,
                            "additional_parameters": {"no-kill": False, "gres-flags": "1.5"}}]
        assert slurm._Jobs(directory)._jobs == {case.id: f"job of {case.id}" for case in CASES[:2]}

    def test_a_rejection_is_one_line(self, directory: SweepDirectory, monkeypatch: pytest.MonkeyPatch,
                                     updated: list[dict[str, Any]]) -> None:
        from submitit.core.utils import FailedJobError
        from submitit.slurm.slurm import SlurmExecutor

        def fail(*_: Any) -> None:
            raise FailedJobError("x" * 400 + "\nno such  partition")

        monkeypatch.setattr(SlurmExecutor, "submit", fail)
        with pytest.raises(UserError, match=r"^Slurm rejects the jobs: x{282} no such partition$"):
            slurm._Jobs(directory).submit(CASES, {})


@pytest.mark.parametrize("child", [False, True])
def test_a_job_that_is_stopped_asks_to_be_queued_again(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, child: bool) -> None:
    pytest.importorskip("submitit")
    (tmp_path / "logs").mkdir()
    job = slurm.CaseJob(tmp_path, "c0")
    if child:
        monkeypatch.setattr(slurm.sys, "executable", "false")
        assert job() == 1
        assert (tmp_path / "logs" / "c0.txt").read_text() == ""
    again = job.checkpoint().function
    assert (again._directory, again._case_id, again._child) == (tmp_path, "c0", None)
