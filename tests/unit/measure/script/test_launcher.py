"""Starting a program on several ranks, and the end of a rank with the process that started it."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from support.ranks import SCRIPT, only_record

from charact.core.errors import UserError
from charact.measure.script.ranks import launcher
from charact.measure.script.ranks.launcher import AGENT, divide_threads, end_with_agent, launch, without_option

STARTER = """
import os, subprocess, sys
rank = '''
import os, signal, time
from charact.measure.script.ranks import launcher
launcher._GRACE_S = 0.2
if {ignores}: signal.signal(signal.SIGTERM, signal.SIG_IGN)
launcher.end_with_agent(os.environ)
print(os.getpid(), launcher.AGENT in os.environ, flush=True)
time.sleep(60)
'''
subprocess.Popen([sys.executable, "-c", rank], env=os.environ | {{"CHARACT_AGENT": str(os.getpid())}}).wait()
"""


@pytest.mark.slow_variants
@pytest.mark.parametrize("ignores", [False, True])
def test_a_rank_ends_soon_after_its_agent_was_killed(ignores: bool) -> None:
    agent = subprocess.Popen([sys.executable, "-c", STARTER.format(ignores=ignores)], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
    assert agent.stdout is not None
    pid, is_seen = agent.stdout.readline().split()
    rank = psutil.Process(int(pid))
    assert is_seen == "False"
    agent.kill()
    assert psutil.wait_procs([rank], timeout=10)[1] == []
    assert agent.communicate()[1] == "charact: the process that started the ranks has ended: this rank ends, too\n"


def test_first_comes_a_signal_that_lets_the_record_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    parents, sent = iter([5, 5, 1]), []
    monkeypatch.setattr(launcher.time, "sleep", lambda seconds: sent.append(seconds))
    launcher._watch(5, lambda: next(parents), lambda pid, number: sent.append((pid, number)))
    assert sent == [0.5, 0.5, (os.getpid(), signal.SIGTERM), 10.0, (os.getpid(), signal.SIGKILL)]


def test_without_an_agent_nothing_is_watched() -> None:
    before = threading.active_count()
    end_with_agent({})
    end_with_agent({AGENT: "nobody"})
    assert threading.active_count() == before


@pytest.mark.parametrize(("num_ranks", "num_cores", "given", "threads", "warns"), [
    (2, 8, {}, "4", False), (2, 2, {}, "1", False), (3, 2, {}, "1", True), (2, 8, {"OMP_NUM_THREADS": "3"}, "3", False),
])  # fmt: skip
def test_threads_are_divided(num_ranks: int, num_cores: int, given: dict[str, str], threads: str, warns: bool,
                             capsys: pytest.CaptureFixture[str]) -> None:
    environment = dict(given)
    divide_threads(num_ranks, num_cores, environment)
    assert environment == {"OMP_NUM_THREADS": threads}
    assert ("3 ranks share 2 cores" in capsys.readouterr().err) is warns


@pytest.mark.parametrize("option", [["--nproc", "2"], ["--nproc=2"]])
def test_ranks_get_the_arguments_without_the_option(option: list[str]) -> None:
    given = ["run", "--skip", "1", *option, "train.py", "--nproc", "7"]
    assert without_option(given) == ["run", "--skip", "1", "train.py", "--nproc", "7"]


def test_a_rank_starts_no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UserError, match=r"this process is rank 1 of 4 already .*: leave out --nproc"):
        launch(2, ["run", "train.py"])


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "status"), [((), 0), (("--fail-at", "8"), 1)])
def test_nproc_starts_the_ranks_and_makes_one_record(arguments: tuple[str, ...], status: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "charact", "run", "--nproc", "2", "--quiet", str(SCRIPT), *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"}, text=True,
                          capture_output=True, check=False, timeout=300)
    assert done.returncode == status, done.stderr
    run = only_record(tmp_path, done.stderr)
    assert [case["rank"] for case in run.manifest["cases"]] == [0, 1]
    assert ("ValueError: bad batch" in done.stderr) is bool(status)
    if status:
        assert run.manifest["ending"] == "rank 1: ValueError: bad batch"
