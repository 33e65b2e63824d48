"""Handling of Ctrl-C, SIGTERM and SIGHUP: they end measurements, but never interrupt writing."""

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Interrupt:
    """Raises `KeyboardInterrupt` for signals inside `with interrupt.allowed():`, and defers them elsewhere.

    Handles SIGINT, SIGTERM and SIGHUP, except an ignored SIGHUP, as under nohup.

    Use as a context manager in the main thread: the previous handlers are restored at its end.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        """The received signal; None if there was none."""
        self._allowed = False
        self._terminals = [file for file in (0, 1, 2) if _is_terminal(file)]

    def __enter__(self) -> "Interrupt":
        self._before = {number: signal.signal(number, self._handle) for number in SIGNALS
                        if signal.Signals(number).name != "SIGHUP" or signal.getsignal(number) != signal.SIG_IGN}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def ending(self) -> dict[str, str]:
        """Return the changes that the received signal makes in a case's entry: status and reason."""
        return {"status": "interrupted", "reason": f"by {signal.Signals(self.signal or signal.SIGINT).name}"}

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        """Let signals interrupt the block; an earlier signal does so immediately."""
        self._allowed = True
        try:
            if self.signal is not None:
                raise KeyboardInterrupt
            yield
        finally:
            self._allowed = False

    def _handle(self, number: int, _: FrameType | None) -> None:
        if signal.Signals(number).name == "SIGHUP":
            self._leave_terminals()
        first = self.signal is None
        self.signal = self.signal or number
        if self._allowed and first:  # a second one must not interrupt the handling of the first
            raise KeyboardInterrupt

    def _leave_terminals(self) -> None:
        """Redirect output to /dev/null if its terminal is gone: otherwise each printed line would raise an error."""
        for file in self._terminals:
            if not _is_terminal(file):
                nowhere = os.open(os.devnull, os.O_RDWR)
                os.dup2(nowhere, file)
                os.close(nowhere)


def _is_terminal(file: int) -> bool:
    try:
        return os.isatty(file)
    except OSError:
        return False
