"""Cases of a sweep that run here, each in a process of its own."""

from pathlib import Path
from typing import Any

import pytest

from charact.sweeps import local
from charact.sweeps.definition import Definition, SweepCase
from charact.sweeps.directory import Outcome, SweepDirectory
from charact.sweeps.task import TAKEN

CASE = SweepCase("infer", (), 1)
DONE = Outcome("ok", 0, "", "run", 1.0, "here", "now", 1)


@pytest.fixture
def directory(tmp_path: Path) -> SweepDirectory:
    found = SweepDirectory(tmp_path / "out")
    found.create(Definition("one", (CASE,)))
    return found


class Processes:
    """Replaces `Popen`: each process ends with the next status; 'wrote' writes an outcome first."""

    def __init__(self, directory: SweepDirectory, *endings: Any) -> None:
        self.directory, self.endings, self.signals = directory, list(endings), list[int]()

    def __call__(self, *_: Any, stdout: Any, **__: Any) -> "Processes":
        stdout.write(b"some\nlast words\n")
        return self

    def wait(self) -> int:
        ending = self.endings.pop(0)
        if isinstance(ending, BaseException):
            raise ending
        status, wrote = ending
        if wrote:
            self.directory.write(CASE, DONE)
        return int(status)

    def send_signal(self, number: int) -> None:
        self.signals.append(number)


@pytest.mark.parametrize(("status", "wrote", "expected"), [
    (0, True, ("ok", 0, "")), (-9, True, ("ok", 0, "")), (137, True, ("ok", 0, "")), (3, True, ("ok", 0, "")),
    (-9, False, ("killed", None, "by SIGKILL, possibly for lack of memory")),
    (137, False, ("killed", None, "by SIGKILL, possibly for lack of memory")),
    (-15, False, ("killed", None, "by SIGTERM")), (129, False, ("killed", None, "by SIGHUP")),
    (255, False, ("killed", None, "by signal 127")), (128, False, ("failed", 128, "last words")),
    (1, False, ("failed", 1, "last words")), (0, False, None)])
def test_endings_of_a_process(directory: SweepDirectory, monkeypatch: pytest.MonkeyPatch, status: int, wrote: bool,
                              expected: tuple[str, int | None, str] | None) -> None:
    monkeypatch.setattr(local.subprocess, "Popen", Processes(directory, (status, wrote)))
    calls: list[str] = []
    local.run_cases(directory, [CASE], lambda _: calls.append("begin"), lambda _: calls.append("end"))
    found = directory.outcome(CASE)
    assert (found and (found.state, found.exit_status, found.reason)) == expected
    assert calls == ["begin", "end"]


def test_a_case_that_another_process_runs_is_waited_for(
        directory: SweepDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    locked, waits = [True, True, False], list[float]()
    processes = Processes(directory, (TAKEN, False), (0, True))
    monkeypatch.setattr(local.subprocess, "Popen", processes)
    monkeypatch.setattr(SweepDirectory, "is_locked", lambda *_: locked.pop(0))
    monkeypatch.setattr(local.time, "sleep", waits.append)
    local.run_cases(directory, [CASE], lambda _: None, lambda _: None)
    assert (processes.endings, locked, len(waits), directory.outcome(CASE)) == ([], [], 2, DONE)


@pytest.mark.parametrize("second", [(0, False), KeyboardInterrupt()])
def test_ctrl_c_stops_the_case(directory: SweepDirectory, monkeypatch: pytest.MonkeyPatch, second: Any) -> None:
    processes = Processes(directory, KeyboardInterrupt(), second)
    monkeypatch.setattr(local.subprocess, "Popen", processes)
    with pytest.raises(KeyboardInterrupt):
        local.run_cases(directory, [CASE], lambda _: None, lambda _: pytest.fail("it has not ended"))
    assert (processes.signals, processes.endings, directory.outcome(CASE)) == ([15], [], None)
