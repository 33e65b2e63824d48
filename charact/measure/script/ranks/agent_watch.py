"""Ends a rank after the process that started it has ended, as `kill -9` does without a word. Imports no torch."""

import os
import signal
import threading
import time
from collections.abc import Callable, MutableMapping

from charact.core.output import warn

AGENT = "CHARACT_AGENT"
"""Environment variable with the number of the process that started the ranks; programs do not see it."""
_CHECK_S = 0.5
_GRACE_S = 10.0
"""Time in which the rank may end by SIGTERM: a rank that waits for others inside of C++ does not handle it."""


def end_with_agent(environment: MutableMapping[str, str]) -> None:
    """Start a thread that ends this rank soon after its agent has ended; nothing to do without one."""
    agent = environment.pop(AGENT, "")
    if agent.isdecimal():
        threading.Thread(target=_watch, args=(int(agent), os.getppid, os.kill), name="charact-agent",
                         daemon=True).start()


def _watch(agent: int, parent: Callable[[], int], kill: Callable[[int, int], None]) -> None:
    while parent() == agent:
        time.sleep(_CHECK_S)
    warn("charact: the process that started the ranks has ended: this rank ends, too")
    kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_S)
    kill(os.getpid(), signal.SIGKILL)
