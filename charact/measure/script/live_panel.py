"""Live view of a profiled program: a separate process that only reads the event log.

The live view locks a file in the run's directory while it draws. The file contains the bytes that restore the terminal.
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
    """Start `charact watch` on this run.

    It is no child of the program, because the program may wait for all of its children.
    """
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
    """Wait at most 2 s until the live view has restored the terminal.

    The live view does so when the event log has ended.

    Returns:
        Bytes to write to the terminal: they restore it if the live view was killed, and are empty otherwise.
    """
    panel = directory / PANEL
    until = time.monotonic() + _WAIT_S
    while panel.exists() and time.monotonic() < until:
        held = None
        with contextlib.suppress(UserError):  # no descriptor is free: wait for the view
            held = lock(panel)
        if held is not None:
            restoring = os.read(held, 1000)
            panel.unlink(missing_ok=True)
            os.close(held)
            return restoring
        time.sleep(_LOOK_S)
    panel.unlink(missing_ok=True)
    return b""
