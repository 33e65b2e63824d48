"""Runs the cases of a sweep on this machine, each in a process of its own."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from signal import SIGTERM, Signals

from charact.core.files import writing
from charact.sweeps.definition import SweepCase
from charact.sweeps.directory import SweepDirectory, now
from charact.sweeps.task import TAKEN, last_line

_POLL_S = 0.2
_SIGNALED = 128

OnCase = Callable[[SweepCase], None]
"""Function that is called when a case begins, and when it has ended."""


def run_cases(directory: SweepDirectory, cases: Sequence[SweepCase], on_begin: OnCase, on_end: OnCase) -> None:
    """Run cases one after another; a case that another process still runs is waited for.

    Raises:
        KeyboardInterrupt: Ctrl-C; the running case was stopped first and has no outcome.
    """
    for case in cases:
        on_begin(case)
        while _run(directory, case) == TAKEN:
            while directory.is_locked(case.id):
                time.sleep(_POLL_S)
        on_end(case)


def _run(directory: SweepDirectory, case: SweepCase) -> int:
    """Run a case in a process, write its outcome if a signal ended it, and return the exit status."""
    before, begun = directory.outcome(case), now()
    log = directory.log(case)
    with writing(log), log.open("wb") as output:
        # In a session of its own: Ctrl-C is for this process, which then stops the case.
        child = subprocess.Popen([sys.executable, "-m", "charact.sweeps.task", str(directory.path), case.id],
                                 stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                 start_new_session=True)
    try:
        status = child.wait()
    except KeyboardInterrupt:
        with contextlib.suppress(KeyboardInterrupt):  # a second one must not leave it behind
            child.send_signal(SIGTERM)
            child.wait()
        raise
    signal = -status if status < 0 else status - _SIGNALED if status > _SIGNALED else 0
    if signal and not directory.is_done(case):  # else it ended well, and was killed right after
        name = Signals(signal).name if signal in set(Signals) else f"signal {signal}"
        reason = f"by {name}" + (", possibly for lack of memory" if signal == 9 else "")
        directory.end(case, "killed", begun, None, reason)
    elif status not in (0, TAKEN) and directory.outcome(case) == before:
        directory.end(case, "failed", begun, status, last_line(log))
    return status
