"""A program in a terminal of its own, a real one as far as the program can tell, whose screen a test looks at."""

import codecs
import contextlib
import fcntl
import io
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from charact.record.reader import load_run
from charact.views.summary import summary
from charact.views.terminal.renderer import drawn
from support.screen import Screen

_LIMIT_S = 120


def set_size(terminal: int, num_rows: int, num_columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", num_rows, num_columns, 0, 0))


def _shell(command: list[str], environment: dict[str, str], tell: int) -> int:
    """Run a command as the job that has the terminal; returns its status."""
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    job = os.fork()
    if job == 0:
        os.setpgid(0, 0)
        os.tcsetpgrp(0, os.getpgrp())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        os.write(tell, str(os.getpid()).encode())
        os.execve(command[0], command, environment)
    while True:
        status = os.waitpid(job, os.WUNTRACED)[1]
        os.tcsetpgrp(0, os.getpgrp())
        if not os.WIFSTOPPED(status):
            _await_group(job)
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        os.read(0, 100)
        os.tcsetpgrp(0, job)
        os.killpg(job, signal.SIGCONT)


def _await_group(group: int) -> None:
    """Until the last process of a job has ended: a shell would live on, and keep the terminal open for it."""
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.killpg(group, 0)
            time.sleep(0.05)


class InTerminal:
    """Runs a command as a shell does, in a terminal of 24 rows and 80 columns; `screen` shows what has been written.

    A stopped command goes on when a line is typed.
    """

    def __init__(self, command: list[str], directory: Path, environment: dict[str, str]) -> None:
        told, tell = os.pipe()
        self._shell, self._terminal = pty.fork()
        if self._shell == 0:
            set_size(0, 24, 80)
            os.chdir(directory)
            os._exit(_shell(command, os.environ | {"TERM": "xterm-256color"} | environment, tell))
        os.close(tell)
        self.process = int(os.read(told, 20))
        """Number of the command's process."""
        os.close(told)
        self.screen = Screen(24, 80)
        self.status: int | None = None
        """Exit status of the command, 128 and more for a signal; None while the terminal is open."""
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def read(self, until: Callable[[Screen], bool]) -> None:
        """Read until the screen is such as asked for, or the terminal is closed."""
        limit = time.monotonic() + _LIMIT_S
        while not until(self.screen):
            assert time.monotonic() < limit, "\n".join(self.screen.scrolled + self.screen.rows)
            if select.select([self._terminal], [], [], 0.1)[0] and not self._take():
                return

    def wait(self) -> int:
        """Read to the end; returns the exit status."""
        self.read(lambda screen: False)
        assert self.status is not None
        return self.status

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def resize(self, num_rows: int) -> None:
        set_size(self._terminal, num_rows, 80)
        self.screen.resize(num_rows, 80)

    def lines(self) -> list[str]:
        return self.screen.scrolled + self.screen.rows

    def _take(self) -> bool:
        """Take in what was written; returns whether more may come."""
        try:
            written = os.read(self._terminal, 65536)
        except OSError:  # the last process that had it open has ended
            written = b""
        self.screen.feed(self._decoder.decode(written))
        if not written:
            self.status = os.waitstatus_to_exitcode(os.waitpid(self._shell, 0)[1])
            os.close(self._terminal)
        return bool(written)


def shown(path: Path, *, width: int = 80, color: bool = False) -> str:
    stream = io.StringIO()
    system = "truecolor" if color else None
    Console(file=stream, width=width, force_terminal=color, color_system=system).print(drawn(summary(load_run(path))))
    return stream.getvalue()
