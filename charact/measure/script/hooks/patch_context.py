"""State that all patches share: whether a span may open now, and which object owns it. No torch in here."""

import weakref
from collections.abc import Callable
from threading import get_ident
from typing import Any

from charact.measure.script.hooks.replacements import Replacements
from charact.measure.script.spans.recorder import Kind, SpanRecorder


class PatchContext:
    """Opens spans around calls of the thread that created it.

    Args:
        recorder: records the spans.
        on_owner: called with each module, optimizer and loader iterator, and its owner ID, when its first span opens.
        on_span_end: called with kind and owner ID after a step, forward, backward or fetch, when no span is open.
    """

    def __init__(self, recorder: SpanRecorder, on_owner: Callable[[Any, int], None],
                 on_span_end: Callable[[Kind, int], None]) -> None:
        self.recorder = recorder
        self.on_owner, self.on_span_end = on_owner, on_span_end
        self.replacements = Replacements()
        self.thread = get_ident()
        self.is_compiling: Callable[[], bool] = bool
        """Whether a compiler traces; always False until PyTorch is imported."""
        self._numbers: dict[int, tuple[int, weakref.ref[Any]]] = {}
        """Owner IDs of living owners, by `id()`, which a later object may reuse."""
        self._num_owners = 0

    def owner_id(self, obj: Any) -> int:
        """Return the owner ID of a module, optimizer or loader iterator; the first call calls `on_owner`."""
        identity = id(obj)
        known = self._numbers.get(identity)
        if known is None:
            self._num_owners += 1
            known = self._num_owners, weakref.ref(obj, lambda _: self._numbers.pop(identity, None))
            self._numbers[identity] = known
            self.on_owner(obj, known[0])
        return known[0]

    def may_open(self, kind: Kind) -> bool:
        """Return whether a span of a kind may open now."""
        return not self.is_compiling() and kind in self.recorder.may_open and get_ident() == self.thread

    def span(self, kind: Kind, *, notify: bool = False) -> Callable[[Any], Any]:
        """Return a wrapper that opens a span of a kind; with `notify` its end calls `on_span_end`."""
        recorder, is_compiling, thread = self.recorder, self.is_compiling, self.thread

        def wrap(original: Any) -> Any:
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                if is_compiling() or kind not in recorder.may_open or get_ident() != thread:
                    return original(*args, **kwargs)
                recorder.enter(kind)
                try:
                    result = original(*args, **kwargs)
                finally:
                    recorder.leave()
                if notify and recorder.idle:
                    self.on_span_end(kind, 0)
                return result

            return wrapper

        return wrap
