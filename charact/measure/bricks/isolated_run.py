"""Running a suite in a separate process, so that a crashing brick does not end the main process."""

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from charact.core.errors import UserError
from charact.core.observer import Observer
from charact.execution.interrupt import SIGNALS, Interrupt
from charact.record.writer import RunWriter

_PR_SET_PDEATHSIG = 1


def run_isolated(writer: RunWriter, observer: Observer, interrupt: Interrupt) -> None:
    """Run the cases named by a record's options in a new process, which writes them to the record.

    The new process has used neither GPU nor threads. After each report it waits until the observer has displayed it,
    so that the display does not disturb measurements. Signals are forwarded to the process.

    Raises:
        UserError: the suite lacks the requested bricks, the record cannot be written, or the process crashed outside
            of a brick.
    """
    events, their_events = os.pipe()
    their_answers, answers = os.pipe()
    handed = (writer.lock, their_events, their_answers)
    command = [sys.executable, "-P", "-m", "charact.measure.bricks.worker_process", str(writer.directory),
               *map(str, (*handed, os.getpid()))]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    # The child starts with signals blocked, since one that arrives during startup would end it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment, pass_fds=handed,
                                 start_new_session=True)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(their_events)
        os.close(their_answers)
    try:
        refused = _relay(events, answers, child, observer, interrupt)
        status = child.wait()
    except BaseException:
        child.kill()
        child.wait()
        raise
    finally:
        os.close(events)
        os.close(answers)
    writer.reload()
    if refused is not None:
        raise UserError(refused)
    ended_by = -status if status < 0 else status - 128
    if ended_by > 0 and interrupt.signal is None:
        raise UserError(f"the process that runs the bricks was ended by signal {ended_by}, outside of any brick or in "
                        "a brick that had crashed before")
    if 0 < status <= 128:
        raise RuntimeError("the process that runs the bricks failed: its error is above")


def _relay(events: int, answers: int, child: "subprocess.Popen[bytes]", observer: Observer, interrupt: Interrupt
           ) -> str | None:
    """Forward a process's reports to the observer until it ends; return the error that it reported, if any."""
    refused = None
    calls: dict[str, Callable[..., None]] = {
        "case": observer.case_started, "pass": observer.pass_started, "round": observer.iteration,
        "ended": observer.case_ended}
    for line in _lines(events, child, interrupt):
        try:
            kind, *arguments = json.loads(line)
            if kind == "refused":
                refused = str(arguments[0])
            elif kind == "signal":
                interrupt.signal = interrupt.signal or int(arguments[0])
            else:
                calls[kind](*arguments)
        except (ValueError, TypeError, LookupError) as error:  # a brick may have corrupted its memory
            raise UserError("the process that runs the bricks sent an invalid report: a brick of the suite may have "
                            "corrupted its memory") from error
        with contextlib.suppress(BrokenPipeError):  # the worker crashed in between
            os.write(answers, b".")
    return refused


def _lines(events: int, child: "subprocess.Popen[bytes]", interrupt: Interrupt) -> Iterator[bytes]:
    left = b""
    while True:
        try:
            if interrupt.signal is None:
                with interrupt.allowed():
                    select.select([events], [], [])
        except KeyboardInterrupt:
            child.send_signal(interrupt.signal or signal.SIGINT)
        chunk = os.read(events, 65_536)
        if not chunk:
            return
        *lines, left = (left + chunk).split(b"\n")
        yield from lines


class Report(Observer):
    """Observer in the process that runs bricks; it reports to the parent process and waits for the answer."""

    def __init__(self, events: int, answers: int) -> None:
        self._events, self._answers = events, answers

    def send(self, kind: str, *arguments: Any) -> None:
        """Send a report and wait for the answer."""
        # One write below the pipe's capacity is atomic.
        try:
            os.write(self._events, json.dumps([kind, *arguments]).encode() + b"\n")
            answer = os.read(self._answers, 1)
        except BrokenPipeError:
            answer = b""
        if not answer:  # the parent was killed: leave the record for a later resume
            os._exit(1)

    def case_started(self, case_id: str, number: int, total: int) -> None:
        """Report that a case begins."""
        self.send("case", case_id, number, total)

    def pass_started(self, name: str) -> None:
        """Report that a pass begins."""
        self.send("pass", name)

    def iteration(self, num_iterations: int, median_s: float) -> None:
        """Report that a round has ended."""
        self.send("round", num_iterations, median_s)

    def case_ended(self, status: str, reason: str | None) -> None:
        """Report that a case has ended and is in the record."""
        self.send("ended", status, reason if reason is None else reason[:1000])


def die_with_parent(parent: int) -> None:
    """Request that the kernel kills this process when its parent ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the request
        os._exit(1)
