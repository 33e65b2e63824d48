"""The live view of a watched program: a process of its own that only reads the spool, so that the program does nothing.

While it draws it holds the lock of a file in the run's directory, in which stands what gives the terminal back.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from charact.core.errors import UserError
from charact.core.files import lock
from charact.record.in_progress import PANEL

_WAIT_S = 2.0
_LOOK_S = 0.02


def start_panel(directory: Path, environment: Mapping[str, str]) -> None:
    """Start `charact watch` on the run of this process, as nobody's child: a program may wait for all of its own."""
    (directory / PANEL).touch()
    child = os.fork()
    if child == 0:
        try:
            subprocess.Popen([sys.executable, "-P", "-m", "charact", "watch", "--of-run", str(directory)],
                             stdin=subprocess.DEVNULL, stdout=2, env=environment)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def end_panel(directory: Path) -> bytes:
    """Wait until the live view has given the terminal back, which it does when the spool tells of the program's end.

    Returns what is left to write to the terminal: where the view was killed, what it had put down for that.
    """
    panel = directory / PANEL
    until = time.monotonic() + _WAIT_S
    while panel.exists() and time.monotonic() < until:
        held = None
        with contextlib.suppress(UserError):  # where no descriptor is left the view is only waited for
            held = lock(panel)
        if held is not None:
            restoring = os.read(held, 1000)
            panel.unlink(missing_ok=True)
            os.close(held)
            return restoring
        time.sleep(_LOOK_S)
    panel.unlink(missing_ok=True)
    return b""
