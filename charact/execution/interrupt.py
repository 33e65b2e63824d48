"""Ctrl-C, SIGTERM and SIGHUP: they end what is being measured, never what is being written."""

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupt:
    """Turns signals into `KeyboardInterrupt` inside `with interrupt.allowed():`, and holds them elsewhere.

    They are SIGINT, SIGTERM and SIGHUP, but for a SIGHUP that is ignored, as under nohup.

    Use as a context manager in the main thread: the handlers that were there come back at its end.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        """The signal that came; None while none has."""
        self._allowed = False
        self._terminals = [file for file in (0, 1, 2) if _is_terminal(file)]

    def __enter__(self) -> "Interrupt":
        self._before = {number: signal.signal(number, self._handle) for number in SIGNALS
                        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def ending(self) -> dict[str, str]:
        """What the signal that came changes in a case's entry: status and reason."""
        return {"status": "interrupted", "reason": f"by {signal.Signals(self.signal or signal.SIGINT).name}"}

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        """Let the signals interrupt what runs inside; one that came before does so at once."""
        self._allowed = True
        try:
            if self.signal is not None:
                raise KeyboardInterrupt
            yield
        finally:
            self._allowed = False

    def _handle(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self._leave_terminals()
        first = self.signal is None
        self.signal = self.signal or number
        if self._allowed and first:  # a second one must not break what the first has set going
            raise KeyboardInterrupt

    def _leave_terminals(self) -> None:
        """Let output go nowhere where its terminal is gone: else each line printed would be an error."""
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
