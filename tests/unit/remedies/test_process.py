"""Processes of trials: their input, time limit and end, and the reasons of failures."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from charact.commands._shared.publish import NO_VIEWS
from charact.core.errors import UserError
from charact.remedies import process
from charact.remedies.process import _reason, _run
from charact.remedies.remedy import Remedy, Setting, all_remedies

LEAVES_A_PROCESS = """
import subprocess, sys
code = "import time; print('ready', flush=True); time.sleep(1000)"
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, file=sys.stderr, flush=True)
"""


def ran(code: str, directory: Path, *, stdin: bytes = b"", limit_s: float = 100.0,
        environment: dict[str, str] | None = None) -> tuple[int | None, str]:
    return _run([sys.executable, "-c", code], stdin, {**os.environ, **(environment or {})}, directory, limit_s)


def has_ended(number: int) -> bool:
    """Return whether a process ends within a second, or is a zombie."""
    for _ in range(100):
        try:
            if Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.01)
    return False


def test_a_program_gets_its_input_directory_and_environment(tmp_path: Path) -> None:
    code = "import os, sys; sys.exit(f'{sys.stdin.read()} {os.getcwd()} {os.environ[\"OWN\"]}')"
    status, error = ran(code, tmp_path, stdin="käse\n".encode() * 50_000, environment={"OWN": "1"})
    assert status == 1
    assert error == "käse\n" * 50_000 + f" {tmp_path.resolve()} 1\n"


def test_the_input_of_two_runs_is_the_same(tmp_path: Path) -> None:
    for _ in range(2):
        assert ran("import sys; sys.stderr.write(input() + '!')", tmp_path, stdin=b"x\ny\n") == (0, "x!")


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_processes_that_a_program_leaves_are_ended_and_not_waited_for(tmp_path: Path) -> None:
    begun_s = time.monotonic()
    status, error = ran(LEAVES_A_PROCESS, tmp_path, limit_s=60)
    assert status == 0
    assert time.monotonic() - begun_s < 60
    assert has_ended(int(error))


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_a_program_that_takes_too_long_is_ended_with_its_processes(tmp_path: Path) -> None:
    status, error = ran(LEAVES_A_PROCESS + "import time; time.sleep(1000)", tmp_path, limit_s=3)
    assert status is None
    assert has_ended(int(error))


def test_a_program_that_ignores_the_request_to_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_GRACE_S", 0.2)
    code = "import os, signal, sys, time; signal.signal(15, lambda *_: print('asked', file=sys.stderr, flush=True))"
    status, error = ran(f"{code}\nwhile True: time.sleep(1)", tmp_path, limit_s=2)
    assert (status, error) == (None, "asked\n")


def test_a_program_may_end_itself_when_its_time_is_up(tmp_path: Path) -> None:
    code = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit('cleaned up')); time.sleep(1000)"
    assert ran(code, tmp_path, limit_s=2) == (None, "cleaned up\n")


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_ctrl_c_ends_the_program(tmp_path: Path) -> None:
    place = tmp_path / "pid"
    code = f"import os, time; open({str(place)!r}, 'w').write(str(os.getpid())); time.sleep(1000)"

    def interrupt() -> None:
        while not place.exists() or not place.read_text():
            time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        ran(code, tmp_path)
    thread.join()
    assert has_ended(int(place.read_text()))


def test_a_program_that_cannot_be_started(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot start"):
        _run([str(tmp_path / "nothing")], b"", dict(os.environ), tmp_path, 1.0)


@pytest.mark.parametrize(("status", "error", "reason"), [
    (1, "Traceback:\n  in f\nValueError: no data\n\n", "ValueError: no data"),
    (1, "ValueError: no data\ncharact: train did not import PyTorch\nWrote runs/x\n", "ValueError: no data"),
    (2, "charact: nothing was measured\n", "charact: nothing was measured"),
    (2, "error: --x is unknown\n", "--x is unknown"),
    (2, "30/30\nerror: no model was called\nerror: it is empty\nWrote x", "30/30; it is empty"),
    (1, "Traceback (most recent call last):\nKeyError: 1\nerror: no model was called", "KeyError: 1"),
    (3, " \n", "it ended with status 3"), (3, "Wrote runs/x\n", "it ended with status 3"),
    (-signal.SIGKILL, "x", "ended by SIGKILL: out of memory?"),
    (-signal.SIGSEGV, "x", "ended by SIGSEGV"),
    (None, "x", "it took longer than 60 s and was ended"),
    (1, "x" * 160, "x" * 160),
    (1, "x" * 161, "x" * 159 + "…"),
])
def test_reasons_of_failures(status: int | None, error: str, reason: str) -> None:
    assert _reason(status, error, 60.0) == reason


def test_a_run_that_was_not_finished_is_a_failure_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                                                  ) -> None:
    out = tmp_path / "trials"

    def run(*_: object) -> tuple[int, str]:
        (out / ".partial-x").mkdir()
        (out / ".partial-x" / "run.json").write_text("{}")
        return 0, "30/30\nerror: no space left while writing x: free some\n"

    monkeypatch.setattr(process, "_run", run)
    out.mkdir()
    (out / "outcome.json").write_text('{"unavailable": "that of an earlier trial"}')
    trial = process.Command("run", ("train.py",), b"", tmp_path).measured([], (), out, 1.0)
    assert (trial.run, trial.failure) == (None, "30/30; no space left while writing x: free some")


@pytest.mark.parametrize(("status", "error", "failure"), [
    (1, "ValueError: no data\n", "ValueError: no data"), (0, "", "it wrote no run"), (0, "charact: stopped\n",
                                                                                     "charact: stopped")])
def test_a_program_that_fails_and_one_that_writes_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int,
                                                         error: str, failure: str) -> None:
    """The run of a program that failed is no result, and neither is one that was there before."""
    out = tmp_path / "trials"
    (out / "before").mkdir(parents=True)
    (out / "before" / "run.json").write_text("{}")

    def run(*_: object) -> tuple[int, str]:
        if status:
            (out / "failed").mkdir()
            (out / "failed" / "run.json").write_text("{}")
        return status, error

    monkeypatch.setattr(process, "_run", run)
    trial = process.Command("run", ("train.py",), b"", tmp_path).measured([], (), out, 1.0)
    assert (trial.run, trial.failure) == (None, failure)
    assert (out / "stderr.txt").read_text() == error


def test_a_program_gets_the_options_and_the_environment_of_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                                                        ) -> None:
    """Words after a script are its own; options of a workload come last, since they replace its own."""
    calls: list[tuple[list[str], dict[str, str]]] = []

    def run(command: list[str], stdin: bytes, environment: dict[str, str], *_: object) -> tuple[int, str]:
        calls.append((command, environment))
        return 1, "failed"

    monkeypatch.setattr(process, "_run", run)
    monkeypatch.setitem(all_remedies(), "own", Remedy("own", lambda program: [],
                                                      environment=lambda values: {"OWN": str(values["number"])}))
    for kind in ("run", "profile"):
        process.Command(kind, ("it", "--own"), b"", tmp_path).measured(
            ["--option"], [Setting("own", {"number": 3}, "own", "own")], tmp_path / "trials", 1.0)
    (watched, environment), (built_in, _) = calls
    assert watched[-3:] == ["--option", "it", "--own"]
    assert built_in[-3:] == ["it", "--own", "--option"]
    assert (environment["OWN"], environment[NO_VIEWS]) == ("3", "1")


def test_a_handler_of_signals_that_was_set_before_stays() -> None:
    def own(number: int, frame: object) -> None:
        pass

    before = signal.signal(signal.SIGHUP, own), signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with process.cleaned_up_on_signals():
            assert signal.getsignal(signal.SIGHUP) is own
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert (signal.getsignal(signal.SIGHUP), signal.getsignal(signal.SIGTERM)) == (own, signal.SIG_DFL)
    finally:
        for number, handler in zip((signal.SIGHUP, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)
