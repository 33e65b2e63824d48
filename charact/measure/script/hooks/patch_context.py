"""State that all patches share: whether a span may open now, owners of spans, replaced attributes. No torch in here."""

import functools
import weakref
from collections.abc import Callable, Iterator
from threading import get_ident
from types import CodeType, FunctionType
from typing import Any, TypeVar

from charact.measure.script.program.events import ProgramEvents
from charact.measure.script.program.frames import CreationPlaces
from charact.measure.script.spans.recorder import Kind, SpanRecorder

_ABSENT = object()
Wrapper = TypeVar("Wrapper", bound=Callable[..., Any])


class Replacements:
    """Record of replaced attributes, from which they are restored."""

    def __init__(self) -> None:
        self._made: list[tuple[Any, str, Any, Any]] = []

    def wrap(self, target: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        """Replace a function by `wrap(function)`; skip attributes that are not callable or already replaced."""
        original = getattr(target, name)
        if not callable(original) or any(original is replacement for *_, replacement in self._made):
            return
        replacement: Any = functools.wraps(original)(hidden_from_warnings(wrap(original)))
        replacement.__prepare_scriptable__ = lambda: original  # TorchScript compiles the original
        self.put(target, name, replacement)

    def put(self, target: Any, name: str, replacement: Any) -> None:
        """Set an attribute of the target itself; an inherited attribute is shadowed."""
        self._made.append((target, name, vars(target).get(name, _ABSENT), replacement))
        setattr(target, name, replacement)

    def undo(self) -> None:
        """Restore all attributes, except those that the program has replaced in the meantime."""
        for target, name, original, replacement in reversed(self._made):
            if vars(target).get(name) is not replacement:
                continue
            if original is _ABSENT:
                delattr(target, name)
            else:
                setattr(target, name, original)
        self._made.clear()


def hidden_from_warnings(function: Wrapper) -> Wrapper:
    """Change and return a function, so that the `stacklevel` of a warning does not count its frames."""
    assert isinstance(function, FunctionType)
    function.__code__ = code_hidden_from_warnings(function.__code__)
    return function


@functools.cache
def code_hidden_from_warnings(code: CodeType) -> CodeType:
    """Return a copy of the code with a file name that `warnings` skips, because it looks like import machinery."""
    return code.replace(co_filename=f"{code.co_filename} (importlib._bootstrap)")


def subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    """Yield all direct and indirect subclasses; one with several bases may appear repeatedly."""
    for subclass in kind.__subclasses__():
        yield subclass
        yield from subclasses(subclass)


class PatchContext:
    """Opens spans around calls of the thread that created it.

    `on_owner` is called with each module, optimizer and loader iterator, and its owner ID, when its first span opens;
    `on_span_end` with kind and owner ID after a step, forward, backward or fetch, when no span is open.
    """

    def __init__(self, recorder: SpanRecorder, on_owner: Callable[[Any, int], None],
                 on_span_end: Callable[[Kind, int], None]) -> None:
        self.recorder = recorder
        self.on_owner, self.on_span_end = on_owner, on_span_end
        self.events = ProgramEvents()
        self.places = CreationPlaces()
        self.replacements = Replacements()
        self.thread = get_ident()
        self.training_threads: set[int] = set()
        """Other threads that computed a backward or an optimizer's step while no span was open."""
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
        return not self.is_compiling() and kind in self.recorder.may_open and self._is_watched_thread(kind)

    def _is_watched_thread(self, kind: Kind) -> bool:
        thread = get_ident()
        if thread != self.thread and kind in (Kind.BACKWARD, Kind.STEP) and self.recorder.idle:
            self.training_threads.add(thread)
        return thread == self.thread

    def span(self, kind: Kind, owner: int = 0, *, notify: Kind | None = None,
             on_open: Callable[[tuple[Any, ...], dict[str, Any]], None] | None = None) -> Callable[[Any], Any]:
        """Return a wrapper that opens a span of a kind and owner, after `on_open(arguments, keyword arguments)`.

        Its end calls `on_span_end` with the kind `notify`, unless that is None.
        """
        recorder, is_compiling, is_watched_thread = self.recorder, self.is_compiling, self._is_watched_thread

        def wrap(original: Any) -> Any:
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                if is_compiling() or kind not in recorder.may_open or not is_watched_thread(kind):
                    return original(*args, **kwargs)
                if on_open is not None:
                    on_open(args, kwargs)
                recorder.enter(kind, owner)
                try:
                    result = original(*args, **kwargs)
                finally:
                    recorder.leave()
                if notify is not None and recorder.idle:
                    self.on_span_end(notify, owner)
                return result

            return wrapper

        return wrap
