"""A rank ends with the process that started it."""

import os
import signal
import subprocess
import sys
import threading

import psutil
import pytest

from charact.measure.script.ranks import launcher as agent_watch
from charact.measure.script.ranks.launcher import AGENT, end_with_agent

STARTER = """
import os, subprocess, sys
rank = '''
import os, signal, time
from charact.measure.script.ranks import launcher as agent_watch
agent_watch._GRACE_S = 0.2
if {ignores}: signal.signal(signal.SIGTERM, signal.SIG_IGN)
agent_watch.end_with_agent(os.environ)
print(os.getpid(), agent_watch.AGENT in os.environ, flush=True)
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
    monkeypatch.setattr(agent_watch.time, "sleep", lambda seconds: sent.append(seconds))
    agent_watch._watch(5, lambda: next(parents), lambda pid, number: sent.append((pid, number)))
    assert sent == [0.5, 0.5, (os.getpid(), signal.SIGTERM), 10.0, (os.getpid(), signal.SIGKILL)]


def test_without_an_agent_nothing_is_watched() -> None:
    before = threading.active_count()
    end_with_agent({})
    end_with_agent({AGENT: "nobody"})
    assert threading.active_count() == before
