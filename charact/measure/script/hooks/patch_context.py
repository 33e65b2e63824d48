"""What every patch needs: whether a span may open now, whose it is, and what to tell of it. No torch in here."""

import weakref
from collections.abc import Callable
from threading import get_ident
from typing import Any

from charact.measure.script.hooks.replacements import Replacements
from charact.measure.script.spans.recorder import Kind, SpanRecorder


class Watch:
    """Opens spans around what the thread calls that made this.

    Args:
        recorder: takes the spans.
        seen: told of each module, optimizer and loader's iterator, with its number, when its first span opens.
        ended: called with kind and owner's number after a step, a model's forward, a backward or a fetch, when no span
            is open.
    """

    def __init__(self, recorder: SpanRecorder, seen: Callable[[Any, int], None],
                 ended: Callable[[Kind, int], None]) -> None:
        self.recorder = recorder
        self.seen, self.ended = seen, ended
        self.replacements = Replacements()
        self.thread = get_ident()
        self.is_compiling: Callable[[], bool] = bool
        """Whether a compiler traces; never, as long as there is no PyTorch."""
        self._numbers: dict[int, tuple[int, weakref.ref[Any]]] = {}
        """Numbers of the owners of spans that are alive, by identity, which another object may have later."""
        self._num_owners = 0

    def notice(self, thing: Any) -> int:
        """Number of a module, optimizer or loader's iterator; `seen` hears of it once. It is not kept alive."""
        identity = id(thing)
        known = self._numbers.get(identity)
        if known is None:
            self._num_owners += 1
            known = self._num_owners, weakref.ref(thing, lambda _: self._numbers.pop(identity, None))
            self._numbers[identity] = known
            self.seen(thing, known[0])
        return known[0]

    def may(self, kind: Kind) -> bool:
        """Whether a span of a kind may open now."""
        return not self.is_compiling() and kind in self.recorder.may_open and get_ident() == self.thread

    def span(self, kind: Kind, *, tell: bool = False) -> Callable[[Any], Any]:
        """A wrapper that opens a span of a kind; `tell` for one whose end is told, too."""
        recorder, is_compiling, thread = self.recorder, self.is_compiling, self.thread

        def wrap(original: Any) -> Any:
            def watched(*args: Any, **kwargs: Any) -> Any:
                if is_compiling() or kind not in recorder.may_open or get_ident() != thread:
                    return original(*args, **kwargs)
                recorder.enter(kind)
                try:
                    result = original(*args, **kwargs)
                finally:
                    recorder.leave()
                if tell and recorder.idle:
                    self.ended(kind, 0)
                return result

            return watched

        return wrap
