"""Patch that counts child processes that import PyTorch: they are not recorded. No torch in here."""

import threading
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from charact.measure.script.hooks.patch_context import PatchContext

_INTERVAL_S = 0.2
_LIMIT_S = 60.0
"""Time after its start in which a child is expected to import PyTorch."""


class ChildPatches:
    """Patch of the start of processes of `multiprocessing`, except forked ones and the workers of data loaders.

    A forked child has the patches of its parent, and reports itself, see `SpanRecorder.stop_in_child`.
    """

    def __init__(self, context: PatchContext) -> None:
        self.num_with_torch = 0
        """Number of children that have loaded PyTorch's libraries."""
        self._context = context
        self._lock = threading.Lock()
        self._waiting: dict[int, float] = {}
        """Start time of each child that has not loaded PyTorch yet, by process ID."""

    def install(self) -> None:
        """Install the patch."""
        self._context.replacements.wrap(BaseProcess, "start", self._start)

    def _start(self, original: Any) -> Any:
        def wrapper(process: Any) -> None:
            target = getattr(process, "_target", None)  # `start` deletes it
            original(process)
            if getattr(process._popen, "method", "fork") == "fork" \
                    or str(getattr(target, "__module__", "")).startswith("torch.utils.data."):
                return
            with self._lock:
                if not self._waiting:
                    threading.Thread(target=self._watch, name="charact-children", daemon=True).start()
                self._waiting[process.pid] = time.monotonic()

        return wrapper

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


def _has_torch(process: int) -> bool | None:
    """Return whether a process has loaded PyTorch's libraries; None if it has ended."""
    try:
        return b"libtorch" in Path(f"/proc/{process}/maps").read_bytes()
    except OSError:
        return None
