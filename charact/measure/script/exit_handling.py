"""Exit handling of a profiled program: its record is written however it ends, and its behaviour does not change."""

import atexit
import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from charact.core.files import release
from charact.core.text import label
from charact.measure.script.live_panel import end_panel
from charact.measure.script.session import Session
from charact.record.in_progress import LOCK, BegunRun
from charact.record.rank_parts import job_of

SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_DATA, resource.RLIMIT_FSIZE,
           resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_STACK)
_MOST_TRACEBACK = 8000
"""Characters of a traceback that are recorded, from its end."""


class StandardError:
    """Standard error as it was at the start: a program may close it or open a file in its place."""

    def __init__(self) -> None:
        self._first = self._status()

    @property
    def descriptor(self) -> int:
        """Descriptor for charact's messages: standard error, or the null device if the program has replaced it."""
        return 2 if self._first is not None and self._status() == self._first else subprocess.DEVNULL

    def print_line(self, line: str) -> None:
        """Print a message of charact."""
        self.write(f"charact: {label(line)}\n".encode())

    def write(self, text: bytes) -> None:
        """Write bytes unchanged."""
        if text and self.descriptor == 2:
            with contextlib.suppress(OSError):  # the reader is gone
                os.write(2, text)

    @staticmethod
    def _status() -> tuple[int, int, bool] | None:
        """Return device, inode and whether it is a terminal; None if it is closed."""
        try:
            status = os.fstat(2)
            return status.st_dev, status.st_ino, os.isatty(2)
        except OSError:
            return None


@contextlib.contextmanager
def deferred_signals(on_second: Callable[[], None]) -> Iterator[list[int]]:
    """Yield a list that collects the signals that would end the process; a second one ends it at once.

    Outside of the main thread, signals act as before.
    """
    received: list[int] = []
    handlers: dict[int, signal._HANDLER] = {}

    def handle(number: int, _: FrameType | None) -> None:
        received.append(number)
        if len(received) == 2:
            on_second()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, *SIGNALS):
            if (handler := signal.getsignal(number)) not in (signal.SIG_IGN, None):
                handlers[number] = handler
                signal.signal(number, handle)
    try:
        yield received
    finally:
        for name, handler in handlers.items():
            signal.signal(name, handler)


class TerminationHandler:
    """Calls back when a signal ends the process, before it ends; again for a second signal during the call.

    It leaves alone signals that the program handles or ignores, and all signals outside of the main thread.
    """

    def __init__(self, act: Callable[[str], None]) -> None:
        self._act = act
        self._replace(signal.SIG_DFL, self._handle)
        _INSTALLED.add(self)

    def remove(self) -> None:
        """Restore the default action of the signals."""
        self._replace(self._handle, signal.SIG_DFL)

    @staticmethod
    def _replace(before: object, after: "signal._HANDLER") -> None:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) == before:
                    signal.signal(number, after)

    def _handle(self, number: int, _: FrameType | None) -> None:
        self._act(f"ended by {signal.Signals(number).name}")
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


_INSTALLED: weakref.WeakSet[TerminationHandler] = weakref.WeakSet()


def _remove_in_child() -> None:
    for handler in list(_INSTALLED):
        handler.remove()


os.register_at_fork(after_in_child=_remove_in_child)


class ExitHandler:
    """Writes the record when the program ends: after its own exit handlers, or before an exit that skips them.

    The process that writes it has an `environment` that the program cannot change; if `quiet`, it prints only the path.
    """

    def __init__(self, session: Session, run: BegunRun, error: StandardError, environment: Mapping[str, str], *,
                 quiet: bool) -> None:
        self.description = "to its end"
        """How the program ended."""
        self.traceback: str | None = None
        """Traceback of the error that ended the program; None if none did."""
        self._job = job_of(run.directory)
        """Directory of the job if the program is one of several ranks."""
        self._session, self._run, self._error = session, run, error
        self._environment, self._quiet = environment, quiet
        self._started_in = Path.cwd()
        self._limits = {limit: resource.getrlimit(limit) for limit in _LIMITS}
        self._exit_at_once = os._exit
        self._mask = threading.local()
        self._is_finishing = False

    def install(self) -> None:
        """Handle every end except a kill or a crash."""
        atexit.register(self._at_exit)  # registered first, so called last
        os._exit = self._before_exit_at_once
        os.execv, os.execve = self._before_exec(os.execv), self._before_exec(os.execve)
        self._termination_handler = TerminationHandler(self._on_signal)
        os.register_at_fork(before=self._before_fork, after_in_parent=self._restore_signals,
                            after_in_child=self._after_fork_in_child)

    def _at_exit(self) -> None:
        if self._session.needs_closing:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(AttributeError, OSError, ValueError):
                    stream.flush()
            self._finish(self.description)

    def _before_exit_at_once(self, status: int) -> NoReturn:
        if self._session.needs_closing:
            self._finish(f"os._exit({status})")
        self._exit_at_once(status)

    def _before_exec(self, execute: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
        """Wrap `os.execv` or `os.execve`, which replace the process by another program.

        `os.execvp` and its relatives call these for one directory after another until the program exists.
        """
        def wrapper(path: Any, *arguments: Any, **options: Any) -> NoReturn:
            is_there = isinstance(path, int) or (os.access(path, os.X_OK) and not os.path.isdir(path))
            if self._session.needs_closing and is_there:
                # The other program must not inherit a child that it did not start.
                for number in self._finish("replaced by another program", with_views=True):
                    os.kill(os.getpid(), number)
            execute(path, *arguments, **options)

        return wrapper

    def _on_signal(self, ending: str) -> None:
        if self._session.needs_closing:
            self._finish(ending)
        elif self._is_finishing:
            self._print_in_background()

    def _before_fork(self) -> None:
        # Python loses a signal that has a handler and arrives during a fork.
        self._mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

    def _restore_signals(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask.before)

    def _after_fork_in_child(self) -> None:
        """Let a child exit as if it were not profiled, and not hold the lock."""
        os._exit = self._exit_at_once
        self._restore_signals()
        release(self._run.lock, self._run.directory / LOCK)

    def _finish(self, ending: str, *, with_views: bool = False) -> list[int]:
        """Write the record; return the signals that the process received while it waited for that."""
        self._is_finishing = True
        with deferred_signals(self._print_in_background) as received:
            self._make_record(ending, with_views)
        self._is_finishing = False
        return received

    def _make_record(self, ending: str, with_views: bool) -> None:
        """Write the record in a separate process: the program may have changed anything in this one."""
        # Only several ranks need the traceback, to name the one that failed first.
        traceback = self.traceback[-_MOST_TRACEBACK:] if self.traceback and self._job is not None else None
        self._session.close(ending, traceback)
        directory = self._run.directory
        self._error.write(end_panel(directory))
        if not self._session.started and self._job is None:
            shutil.rmtree(directory, ignore_errors=True)
            self._error.print_line(f"{self._run.manifest['name']} did not import PyTorch: nothing was measured")
            return
        release(self._run.lock, directory / LOCK)
        try:
            reason = self._recover(directory, with_views)
        except OSError as error:
            reason = error.strerror or str(error)
        if reason is not None:
            self._error.print_line(f"the record is not finished ({reason.lower()}): run charact recover {directory}")

    def _print_in_background(self) -> None:
        path = (self._run.directory.parent / self._run.manifest["run_id"] if self._job is None
                else self._job.parent)
        self._error.print_line(f"the record is being written to {path}")

    def _recover(self, directory: Path, with_views: bool) -> str | None:
        """Run `charact recover`, which prints its own messages; return the signal that killed it, if any.

        Its process has a session of its own and blocks signals, so that it completes the record even if this process is
        killed. It writes the views when this process no longer waits, unless `with_views` is set.
        """
        working_directory = self._started_in if self._started_in.is_dir() else directory.parent
        output = self._error.descriptor
        with self._clean_start():
            published, waiting = os.pipe()
            command = [sys.executable, "-P", "-m", "charact", "recover", *(["--quiet"] if self._quiet else []),
                       *([] if with_views else ["--waiting", str(waiting)]), str(directory)]
            try:
                child = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=working_directory,
                    env=self._environment, start_new_session=True, pass_fds=(waiting,))
            finally:
                os.close(waiting)
        try:
            # A launcher must learn at once that a rank has failed.
            if (self._job is not None and self.traceback) or os.read(published, 1):
                child.returncode = 0  # it goes on, and nobody will wait for it
                return None
        finally:
            os.close(published)
        status = child.wait()
        return signal.Signals(-status).name if status < 0 else None

    @contextlib.contextmanager
    def _clean_start(self) -> Iterator[None]:
        """Give a child that is started inside the block the resource limits of the start, as far as they may be raised.

        It never receives a signal that ends a process.
        """
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *SIGNALS})
        present = {limit: resource.getrlimit(limit) for limit in _LIMITS}
        try:
            for limit, (_, hard) in present.items():
                bounds = [bound for bound in (self._limits[limit][0], hard) if bound != resource.RLIM_INFINITY]
                resource.setrlimit(limit, (min(bounds, default=resource.RLIM_INFINITY), hard))
            yield
        finally:
            for limit, both in present.items():
                resource.setrlimit(limit, both)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
