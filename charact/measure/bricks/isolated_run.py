"""Running a suite in a process of its own, so that a brick that crashes ends that process and no other."""

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
    """Run the cases that a record's options name, in a process that writes them into the record.

    The process is a new one: it has used neither a GPU nor threads before. After each report it waits until the
    observer has drawn it, so that drawing does not disturb measurements. Signals are passed on to the process.

    Raises:
        UserError: the suite lacks what was asked for, the record cannot be written, or the process crashed outside of
            any brick.
    """
    events, their_events = os.pipe()
    their_answers, answers = os.pipe()
    handed = (writer.lock, their_events, their_answers)
    command = [sys.executable, "-P", "-m", "charact.measure.bricks.worker_process", str(writer.directory),
               *map(str, (*handed, os.getpid()))]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    # It begins with the signals blocked: one that comes while it starts would end it.
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
                        "one that had crashed before")
    if 0 < status <= 128:
        raise RuntimeError("the process that runs the bricks failed: its error is above")


def _relay(events: int, answers: int, child: "subprocess.Popen[bytes]", observer: Observer, interrupt: Interrupt
           ) -> str | None:
    """Pass a process's reports on to the observer until it ends; returns the error that it reported, if any."""
    refused = None
    calls: dict[str, Callable[..., None]] = {
        "case": observer.case_started, "pass": observer.pass_started, "round": observer.iteration,
        "ended": observer.case_ended}
    for line in _lines(events, child, interrupt):
        try:
            kind, *told = json.loads(line)
            if kind == "refused":
                refused = str(told[0])
            elif kind == "signal":
                interrupt.signal = interrupt.signal or int(told[0])
            else:
                calls[kind](*told)
        except (ValueError, TypeError, LookupError) as error:  # a brick may have written over its memory
            raise UserError("the process that runs the bricks sent an invalid report: it may be broken by a brick "
                            "of the suite") from error
        with contextlib.suppress(BrokenPipeError):  # it crashed in between
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
        piece = os.read(events, 65_536)
        if not piece:
            return
        *lines, left = (left + piece).split(b"\n")
        yield from lines


class Report(Observer):
    """An observer in the process that runs bricks: it reports to the one that started it, and waits for the answer."""

    def __init__(self, events: int, answers: int) -> None:
        self._events, self._answers = events, answers

    def send(self, kind: str, *told: Any) -> None:
        """Report something."""
        # One write, and shorter than a pipe holds: what is reported is there as a whole or not at all.
        try:
            os.write(self._events, json.dumps([kind, *told]).encode() + b"\n")
            answer = os.read(self._answers, 1)
        except BrokenPipeError:
            answer = b""
        if not answer:  # the process that started this one was killed: the record stays as it is, to be resumed
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
    """Have the system end this process when its parent ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before
        os._exit(1)
