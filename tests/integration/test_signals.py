"""Signals that end a command: what had finished is published, or standard error names the hidden run."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from support.forked import Child, Server, assert_clean, assert_holds, hidden, published
from support.programs import TRAINING

from charact.commands._shared.publish import has_views
from charact.execution.interrupt import Interrupt
from charact.record.reader import load_run

SCRIPT = TRAINING + """
def train():
    until = time.monotonic() + 100
    for number in range(10**9):
        step()
        time.sleep(.002)
        if number == 300:
            print("300", flush=True)
        assert time.monotonic() < until
"""
PROFILED = """
import charact
from train import train

with charact.Profiler("mine"):
    train()
"""


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    directory = tmp_path / "here"
    directory.mkdir()
    (directory / "train.py").write_text(SCRIPT)
    (directory / "watched.py").write_text(f"{SCRIPT}\ntrain()\n")
    (directory / "profiled.py").write_text(PROFILED.replace(
        "import charact\n", f"import charact, sys\nsys.path.insert(0, {str(directory)!r})\n"))
    return directory


def recovering(child: Child) -> bool:
    return any("recover" in one.cmdline() for one in psutil.Process(child.pid).children())


@pytest.mark.parametrize("number", [signal.SIGHUP, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_one_that_ends_a_command_leaves_a_run_of_what_had_finished(
        server: Server, cwd: Path, number: signal.Signals) -> None:
    child = server.start("profile", "mlp", "--input-sizes", "2,4", "--batch-sizes", "2", "--mode", "infer",
                         "--precision-target", "0", "--max-iterations", "1000000", "--max-seconds", "1", "--threads",
                         "1", "--quiet", draws_views=True, cwd=cwd)
    child.until(child.flushed)
    child.kill(number)
    done = child.wait()
    assert done.status == 128 + number, done
    (path,) = published(cwd / "runs")
    run = load_run(path)
    assert run.manifest["status"] == "interrupted"
    assert "ok" in set(run.cases["status"])
    assert_holds(run, child.flushed())
    assert_clean(path)


@pytest.mark.slow
def test_more_of_them_to_a_watched_program_end_it_and_its_record_is_written(server: Server, cwd: Path) -> None:
    child = server.start("run", "--quiet", "watched.py", draws_views=True, cwd=cwd, recovers_afresh=True)
    child.until(lambda: "300" in child.output())
    child.kill(signal.SIGHUP)
    child.until(lambda: recovering(child))
    child.kill(signal.SIGTERM)
    time.sleep(0.05)
    child.kill(signal.SIGTERM)
    done = child.wait()
    assert done.status == -signal.SIGTERM
    deadline = time.monotonic() + 100
    while not all(map(has_views, published(cwd / "runs"))) or hidden(cwd / "runs"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (path,) = published(cwd / "runs")
    assert f"charact: the record is being written to {path}\n" in done.error
    assert load_run(path).manifest["ending"] == "ended by SIGHUP"
    assert_clean(path)


@pytest.mark.slow
def test_a_second_one_to_a_program_with_a_profiler_names_the_hidden_run(server: Server, cwd: Path) -> None:
    child = server.start("profiled.py", draws_views=True, cwd=cwd, recovers_afresh=True)
    child.until(lambda: "300" in child.output())
    child.kill(signal.SIGHUP)
    child.until(lambda: recovering(child))
    child.kill(signal.SIGTERM)
    done = child.wait()
    assert done.status == -signal.SIGTERM
    (partial,) = hidden(cwd / "runs")
    assert f"charact: the run is not written (ended by SIGTERM): run charact recover {partial}" in done.error
    again, _ = server.run("recover", "--quiet", partial, cwd=cwd)
    assert again.status == 0, again
    (path,) = published(cwd / "runs")
    assert load_run(path).manifest["ending"] == "ended by SIGHUP"
    assert_clean(path)


@pytest.mark.slow
def test_one_that_ends_a_process_with_a_profiler_leaves_its_run(server: Server, cwd: Path) -> None:
    child = server.start("profiled.py", draws_views=True, cwd=cwd)
    child.until(lambda: "300" in child.output())
    child.kill(signal.SIGTERM)
    assert child.wait().status == -signal.SIGTERM
    (path,) = published(cwd / "runs")
    run = load_run(path)
    assert run.manifest["ending"] == "ended by SIGTERM"
    assert len(run.iterations) > 0


@pytest.mark.slow
def test_one_to_a_recovery_names_the_hidden_run(server: Server, cwd: Path) -> None:
    child = server.start("run", "watched.py", draws_views=True, cwd=cwd)
    child.until(lambda: "300" in child.output())
    child.kill()
    child.wait()
    (partial,) = hidden(cwd / "runs")
    name = f"runs/{partial.name}"
    recovery = server.start("recover", "--quiet", name, draws_views=True, cwd=cwd)
    recovery.until((partial / "parts" / "iterations-0000.parquet").exists)
    recovery.kill(signal.SIGTERM)
    done = recovery.wait()
    assert done.status == 143, done
    assert re.fullmatch(rf"interrupted, and nothing is lost: continue with \S+ recover {name}\n", done.error)
    again, _ = server.run("recover", "--quiet", name, cwd=cwd)
    assert again.status == 0
    (path,) = published(cwd / "runs")
    assert_clean(path)


def test_a_hangup_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupt() as interrupt:
            os.kill(os.getpid(), signal.SIGHUP)
            assert interrupt.signal is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_output_goes_nowhere_when_its_terminal_is_gone(tmp_path: Path) -> None:
    program = """
import fcntl, os, sys, termios, time
from charact.execution.interrupt import Interrupt

os.setsid()
terminal, ours = os.openpty()
fcntl.ioctl(ours, termios.TIOCSCTTY, 0)
for file in (0, 1, 2):
    os.dup2(ours, file)
os.close(ours)
with Interrupt() as interrupt:
    os.close(terminal)
    while interrupt.signal is None:
        time.sleep(0.01)
    print("gone", flush=True)
with open(sys.argv[1], "w") as file:
    file.write(interrupt.ending()["reason"])
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "said")], check=True, timeout=60,
                   start_new_session=False)
    assert (tmp_path / "said").read_text() == "by SIGHUP"
