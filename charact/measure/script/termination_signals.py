"""SIGTERM and SIGHUP in a program that handles neither: its record is written before it ends."""

import contextlib
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGHUP)


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
        for one, handler in handlers.items():
            signal.signal(one, handler)


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
    for one in list(_INSTALLED):
        one.remove()


os.register_at_fork(after_in_child=_remove_in_child)
