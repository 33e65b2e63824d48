"""The end of a watched program, whatever way it comes: what was measured becomes a record, and nothing else changes."""

import atexit
import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from charact.core.files import release
from charact.core.text import label
from charact.measure.script.live_panel import end_panel
from charact.measure.script.session import Session
from charact.measure.script.termination_signals import SIGNALS, LastSignal
from charact.record.in_progress import LOCK, BegunRun

_LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_DATA, resource.RLIMIT_FSIZE,
           resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_STACK)


class StandardError:
    """The standard error as it was at first: a program may close it, and have a file of its own in its place."""

    def __init__(self) -> None:
        self._first = self._status()

    @property
    def descriptor(self) -> int:
        """Where charact's own words go: standard error, or nowhere if it is another one by now."""
        return 2 if self._first is not None and self._status() == self._first else subprocess.DEVNULL

    def say(self, line: str) -> None:
        """Print a line of charact's own."""
        self.write(f"charact: {label(line)}\n".encode())

    def write(self, text: bytes) -> None:
        """Write as it is."""
        if text and self.descriptor == 2:
            with contextlib.suppress(OSError):  # nobody reads any more: nobody is to be told
                os.write(2, text)

    @staticmethod
    def _status() -> tuple[int, int, bool] | None:
        """Which file it is, and whether a terminal; one that is closed is none any more, and writing to it fails."""
        try:
            status = os.fstat(2)
            return status.st_dev, status.st_ino, os.isatty(2)
        except OSError:
            return None


class Ending:
    """Finishes the record when the program ends: after its own handlers at exit, or before what runs no handlers.

    Args:
        session: watches the program.
        run: where the record lies.
        error: takes charact's own words.
        environment: variables of the process that finishes the record, which the program's changes do not touch.
        quiet: whether that process says only where the record is.
    """

    def __init__(self, session: Session, run: BegunRun, error: StandardError, environment: Mapping[str, str], *,
                 quiet: bool) -> None:
        self.words = "to its end"
        """How the program ended."""
        self._session, self._run, self._error = session, run, error
        self._environment, self._quiet = environment, quiet
        self._started_in = Path.cwd()
        self._limits = {limit: resource.getrlimit(limit) for limit in _LIMITS}
        self._exit_at_once = os._exit
        self._mask = threading.local()
        self._is_finishing = False
        self._recovering: subprocess.Popen[bytes] | None = None

    def await_it(self) -> None:
        """Be told of every end but a kill or a crash."""
        atexit.register(self._at_exit)  # the first that is registered is the last that is called
        os._exit = self._before_exit_at_once
        os.execv, os.execve = self._before_exec(os.execv), self._before_exec(os.execve)
        self._last_signal = LastSignal(self._on_signal)
        os.register_at_fork(before=self._before_fork, after_in_parent=self._after_fork, after_in_child=self._in_child)

    def _at_exit(self) -> None:
        if not self._session.mine:
            return
        _flush()
        self._finish(self.words)

    def _before_exit_at_once(self, status: int) -> NoReturn:
        if self._session.mine:
            self._finish(f"os._exit({status})")
        self._exit_at_once(status)

    def _before_exec(self, execute: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
        """Of `os.execv` or `os.execve`: the process goes on as another program, which is not watched.

        Others of the kind try these at one place after the other until a program is there.
        """
        def watched(path: Any, *arguments: Any, **options: Any) -> NoReturn:
            is_there = isinstance(path, int) or (os.access(path, os.X_OK) and not os.path.isdir(path))
            if self._session.mine and is_there:
                self._finish("replaced by another program")
            execute(path, *arguments, **options)

        return watched

    def _on_signal(self, words: str) -> None:
        if self._session.mine:
            self._finish(words)
        elif self._is_finishing:
            if self._recovering is not None:
                self._recovering.kill()  # not to be waited for: what this interrupts may be waiting
            self._say_unfinished(words)

    def _before_fork(self) -> None:
        """Python forgets a signal with a handler that comes while it forks; these have none if not for us."""
        self._mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

    def _after_fork(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask.before)

    def _in_child(self) -> None:
        """A child ends as if it were not watched, and does not hold the lock if it lives longer."""
        os._exit = self._exit_at_once
        self._after_fork()
        release(self._run.lock, self._run.directory / LOCK)

    def _finish(self, words: str) -> None:
        self._is_finishing = True
        self._make_record(words)
        self._is_finishing = False

    def _make_record(self, words: str) -> None:
        """Make the record, in a process of its own: the program may have changed anything in this one."""
        self._session.close(words)
        directory = self._run.directory
        self._error.write(end_panel(directory))
        if not self._session.started:
            shutil.rmtree(directory, ignore_errors=True)
            self._error.say(f"{self._run.manifest['name']} did not import PyTorch: there is nothing to tell")
            return
        release(self._run.lock, directory / LOCK)
        try:
            reason = self._recover(directory)
        except KeyboardInterrupt:
            reason = "interrupted"
        except OSError as error:
            reason = error.strerror or str(error)
        if reason is not None:
            self._say_unfinished(reason.lower())

    def _say_unfinished(self, reason: str) -> None:
        self._error.say(f"the record is not finished ({reason}): charact recover {self._run.directory} does it")

    def _recover(self, directory: Path) -> str | None:
        """Run `charact recover`; returns what killed it, if anything did. What it has to say it says itself."""
        command = [sys.executable, "-P", "-m", "charact", "recover", *(["--quiet"] if self._quiet else []),
                   str(directory)]
        place = self._started_in if self._started_in.is_dir() else directory.parent
        output = self._error.descriptor
        with self._first_limits():
            self._recovering = child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=place, env=self._environment)
        try:
            status = child.wait()
        except KeyboardInterrupt:
            child.kill()
            child.wait()
            raise
        return signal.Signals(-status).name if status < 0 else None

    @contextlib.contextmanager
    def _first_limits(self) -> Iterator[None]:
        """What is begun inside has the limits that there were at first, where the program has not forbidden that."""
        present = {limit: resource.getrlimit(limit) for limit in _LIMITS}
        for limit, (_, hard) in present.items():
            bounds = [one for one in (self._limits[limit][0], hard) if one != resource.RLIM_INFINITY]
            resource.setrlimit(limit, (min(bounds, default=resource.RLIM_INFINITY), hard))
        try:
            yield
        finally:
            for limit, both in present.items():
                resource.setrlimit(limit, both)


def _flush() -> None:
    """Have the program's output stand before ours; what cannot be flushed Python tells when it tries again."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
