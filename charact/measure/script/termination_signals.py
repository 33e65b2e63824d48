"""SIGTERM and SIGHUP in a watched program that handles neither: its record is finished before it ends by them."""

import os
import signal
import threading
import weakref
from collections.abc import Callable
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class LastSignal:
    """Calls back when a signal ends the process, which does so after that; again for one that comes during the call.

    Signals that the program handles or ignores are left alone; so are all where the main thread is another one.

    Args:
        act: gets in a few words how the program ends; a forked child ends at once.
    """

    def __init__(self, act: Callable[[str], None]) -> None:
        self._act = act
        self._replace(signal.SIG_DFL, self._handle)
        _INSTALLED.add(self)

    def remove(self) -> None:
        """Let the signals end the process at once again."""
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


_INSTALLED: weakref.WeakSet[LastSignal] = weakref.WeakSet()


def _remove_in_child() -> None:
    for one in list(_INSTALLED):
        one.remove()


os.register_at_fork(after_in_child=_remove_in_child)
