"""Patches that count child processes that import PyTorch: they are not recorded. No torch in here."""

import re
import subprocess
import sys
import threading
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any

from charact.measure.script.hooks.patch_context import PatchContext

_INTERVAL_S = 0.2
_LIMIT_S = 60.0
"""Time after its start in which a child is expected to import PyTorch."""


_UNCOUNTED = re.compile(rb"torch[./]_inductor|charact(\.cli)? run\b")
"""In the command line of processes that compile for PyTorch, or are recorded themselves."""
_COMPILERS = ("torch._inductor", "torch._dynamo", "torch._functorch", "torch.utils.cpp_extension", "triton")
"""Modules whose processes compile, or test the compiler."""
_STARTERS = ("subprocess", "multiprocessing", "concurrent", "charact")
"""Modules whose functions start the processes of others."""


class ChildPatches:
    """Patches of the start of processes by `subprocess` and by `multiprocessing`, forked ones excepted.

    A forked child has the patches of its parent, and reports itself, see `SpanRecorder.stop_in_child`. Workers of data
    loaders, processes that compile for PyTorch, and programs under `charact run` do not count.
    """

    def __init__(self, context: PatchContext) -> None:
        self.num_with_torch = 0
        """Number of children that have loaded PyTorch's libraries."""
        self._context = context
        self._lock = threading.Lock()
        self._waiting: dict[int, float] = {}
        """Start time of each child that has not loaded PyTorch yet, by process ID."""

    def install(self) -> None:
        """Install the patches."""
        self._context.replacements.wrap(BaseProcess, "start", self._start)
        self._context.replacements.wrap(subprocess.Popen, "__init__", self._popen)

    def _start(self, original: Any) -> Any:
        def wrapper(process: Any) -> None:
            target = getattr(process, "_target", None)  # `start` deletes it
            original(process)
            if getattr(process._popen, "method", "fork") == "fork" or _is_compiler(sys._getframe(1)) \
                    or str(getattr(target, "__module__", "")).startswith("torch.utils.data."):
                return
            self._expect(process.pid)

        return wrapper

    def _popen(self, original: Any) -> Any:
        def wrapper(process: Any, *arguments: Any, **options: Any) -> None:
            original(process, *arguments, **options)
            if not _is_compiler(sys._getframe(1)):
                self._expect(process.pid)

        return wrapper

    def _expect(self, process: int) -> None:
        """Watch a new child until it is known whether it imports PyTorch."""
        with self._lock:
            if not self._waiting:
                threading.Thread(target=self._watch, name="charact-children", daemon=True).start()
            self._waiting[process] = time.monotonic()

    def _watch(self) -> None:
        """Check the libraries of each child (on Linux) until it has loaded PyTorch, has ended, or is 60 s old."""
        is_waiting = True
        while is_waiting:
            time.sleep(_INTERVAL_S)
            with self._lock:
                for process, started in list(self._waiting.items()):
                    has_torch = _has_torch(process)
                    self.num_with_torch += bool(has_torch)
                    if has_torch is not False or time.monotonic() - started > _LIMIT_S:
                        del self._waiting[process]
                is_waiting = bool(self._waiting)


def _is_compiler(frame: FrameType | None) -> bool:
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _STARTERS:
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__")).startswith(_COMPILERS)


def _has_torch(process: int) -> bool | None:
    """Return whether a process or one that it started has loaded PyTorch's libraries.

    None if it has ended, or is of those that do not count.
    """
    folder = Path(f"/proc/{process}")
    try:
        if _UNCOUNTED.search((folder / "cmdline").read_bytes().replace(b"\0", b" ")):
            return None
        if b"libtorch" in (folder / "maps").read_bytes():
            return True
        inner = (folder / "task" / str(process) / "children").read_text(encoding="ascii").split()
    except OSError:
        return None
    return any(_has_torch(int(each)) for each in inner)
