"""Running a suite in a separate process, so that a crashing brick does not end the main process.

The main process starts a supervisor. It forks a worker, and another one whenever a brick has ended the worker. The
supervisor runs no brick itself, so that each worker starts clean: without threads, GPU context or corrupted memory.
"""

import contextlib
import gc
import json
import mmap
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from charact.core.errors import UserError
from charact.core.observer import Observer
from charact.core.output import warn
from charact.execution.interrupt import SIGNALS, Interrupt
from charact.execution.parent import die_with_parent
from charact.record.writer import RunWriter

TIMING, DESCRIBING = "timing", "describing"
"""Activities. A brick that crashes in `DESCRIBING` (counting its work) keeps its times."""
_ACTIVITIES = {b"t": TIMING, b"d": DESCRIBING}
_ID_BYTES = 16


class Note:
    """The running brick, in memory shared with forked processes."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)

    def write(self, brick: str, what: str) -> None:
        """Record the identifier of the running brick and the activity."""
        self._memory[: _ID_BYTES + 1] = what[:1].encode() + brick.encode()

    def clear(self) -> None:
        """Record that no brick runs."""
        self._memory[:1] = b"\0"

    def read(self) -> tuple[str, str] | None:
        """Return the running brick and the activity, or None."""
        what = _ACTIVITIES.get(self._memory[:1])
        return None if what is None else (self._memory[1 : _ID_BYTES + 1].decode(), what)


@dataclass
class Crashes:
    """Bricks that ended earlier processes of a run, and the note of the running brick.

    Args:
        note: note to write; None outside a worker process, where a crash ends the whole run.
        signals: signals that ended a process, by brick and activity.
    """

    note: Note | None = None
    signals: dict[tuple[str, str], int] = field(default_factory=dict)

    @contextlib.contextmanager
    def running(self, brick: str, what: str) -> Iterator[None]:
        """Record that a brick runs in the context."""
        if self.note is None:
            yield
            return
        self.note.write(brick, what)
        try:
            yield
        finally:
            self.note.clear()

    def endings(self, what: str) -> dict[str, dict[str, Any]]:
        """Return status and reason of the bricks that ended a process during an activity."""
        return {brick: _ending_by(number) for (brick, done), number in self.signals.items() if done == what}


def _ending_by(number: int) -> dict[str, Any]:
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    if number == signal.SIGKILL:
        return {"status": "oom", "reason": f"its process was ended by {name}, which usually means out of memory"}
    return {"status": "error", "reason": f"it ended its process by {name}"}


def run_isolated(writer: RunWriter, observer: Observer, interrupt: Interrupt) -> None:
    """Run the cases named by a record's options in a new process, which writes them to the record.

    The new process has used neither GPU nor threads. After each report it waits until the observer has displayed it,
    so that the display does not disturb measurements. Signals are forwarded to the process.
    """
    events, their_events = os.pipe()
    their_answers, answers = os.pipe()
    handed = (writer.lock, their_events, their_answers)
    command = [sys.executable, "-P", "-m", "charact.bricks.timing.suite_run", str(writer.directory),
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
    for line in _lines(events, child, interrupt):
        try:
            kind, *arguments = json.loads(line)
            if kind == "refused":
                refused = str(arguments[0])
            elif kind == "signal":
                interrupt.signal = interrupt.signal or int(arguments[0])
            else:
                getattr(observer, _CALLBACKS[kind])(*arguments)
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


_CALLBACKS = {"case": "case_started", "pass": "pass_started", "round": "iteration", "ended": "case_ended"}
"""Callbacks that a process may request, by the name in its reports."""


class Report(Observer):
    """Observer in the process that runs bricks; it reports to the parent process and waits for the answer."""

    def __init__(self, events: int, answers: int) -> None:
        self._events, self._answers = events, answers

    def send(self, kind: str, *arguments: Any) -> None:
        """Send a report and wait for the answer."""
        # The pipe is empty, since each report is answered: a report below its capacity is one complete write.
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
        """Report that a round has ended: the number of rounds so far, and the time of this one (s)."""
        self.send("round", num_iterations, median_s)

    def case_ended(self, status: str, reason: str | None) -> None:
        """Report that a case has ended and is in the record."""
        self.send("ended", status, reason if reason is None else reason[:1000])


Work = Callable[[Path, int, Report, Interrupt, Crashes], None]
"""Runs the cases of a record: `suite_run.run_cases`."""


def supervise(work: Work, directory: Path, lock: int, events: int, answers: int, parent: int) -> int:
    """Run the cases of a record and return the exit status."""
    die_with_parent(parent)
    gc.freeze()  # a worker's collector would touch all imported objects, and copy the shared pages
    crashes = Crashes(Note())
    assert crashes.note is not None
    while True:
        crashes.note.clear()
        supervisor = os.getpid()
        worker = os.fork()
        if worker == 0:
            _run_and_exit(work, directory, lock, Report(events, answers), crashes, supervisor)
        ended = _waited_for(worker)
        if os.WIFEXITED(ended):
            return os.WEXITSTATUS(ended)
        running = crashes.note.read()
        if running is None or running in crashes.signals:
            return 128 + os.WTERMSIG(ended)
        crashes.signals[running] = os.WTERMSIG(ended)


def _waited_for(worker: int) -> int:
    """Forward signals to a worker until it ends, and return its exit status."""
    while True:
        number = signal.sigwait({*SIGNALS, signal.SIGCHLD})
        if number != signal.SIGCHLD:
            os.kill(worker, number)
        pid, status = os.waitpid(worker, os.WNOHANG)
        if pid and not os.WIFSTOPPED(status):
            return status


def _run_and_exit(work: Work, directory: Path, lock: int, report: Report, crashes: Crashes, supervisor: int) -> None:
    status = 1
    try:
        die_with_parent(supervisor)
        with Interrupt() as interrupt:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {*SIGNALS, signal.SIGCHLD})
            try:
                work(directory, lock, report, interrupt, crashes)
                if interrupt.signal is not None:
                    report.send("signal", interrupt.signal)
            except UserError as error:
                report.send("refused", str(error)[:3000])
        status = 0
    except BaseException:
        warn(*traceback.format_exc().splitlines())
    finally:
        sys.stderr.flush()
        os._exit(status)
