"""Spans of a program's calls into PyTorch, flattened into slices of exclusive time. No torch in here.

Calls nest: a loss inside a model's forward, a closure inside an optimizer's step. A slice is a stretch of one span in
which none of its inner spans ran; slices never overlap and come in order of time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, auto
from time import perf_counter_ns
from typing import Any


class Kind(IntEnum):
    """What a span is: its phase, or what becomes of it."""

    __hash__ = int.__hash__  # an enumeration's own takes longer than all else that a call costs which opens no span

    FETCH = auto()
    """A data loader gives a batch."""
    COPY = auto()
    """A tensor goes from the host to a device."""
    FORWARD = auto()
    LOSS = auto()
    BACKWARD = auto()
    STEP = auto()
    """An optimizer's step, alone or within a scaler's."""
    TIDY = auto()
    """What belongs to an update besides the step: setting gradients to zero, clipping, unscaling."""
    COMMUNICATION = auto()
    COMPILE = auto()
    CLOSURE = auto()
    """What an optimizer's step calls to compute the loss anew; its own time is a gap like any outside of all spans."""
    OTHER = auto()
    """A phase that the program named `other`."""
    END = auto()
    """No span: from where the program says that an iteration ends to where the next may begin."""
    EXHAUSTED = auto()
    """A data loader finds that there is no further batch."""
    GAP = auto()
    """No span: the time from a step to a backward between which no forward was seen."""


OUTERMOST = None
_INSIDE: dict[Kind, frozenset[Kind | None]] = {
    Kind.FETCH: frozenset({OUTERMOST, Kind.CLOSURE}),
    Kind.COPY: frozenset({OUTERMOST, Kind.CLOSURE}),
    # A recomputed forward inside a backward is that backward's; one inside a step is a closure's.
    Kind.FORWARD: frozenset({OUTERMOST, Kind.STEP, Kind.CLOSURE}),
    Kind.LOSS: frozenset({OUTERMOST, Kind.FORWARD, Kind.STEP, Kind.CLOSURE}),
    Kind.BACKWARD: frozenset({OUTERMOST, Kind.FORWARD, Kind.LOSS, Kind.STEP, Kind.CLOSURE}),
    Kind.STEP: frozenset({OUTERMOST, Kind.BACKWARD}),
    Kind.TIDY: frozenset({OUTERMOST, Kind.STEP, Kind.CLOSURE}),
    Kind.COMMUNICATION: frozenset({OUTERMOST, Kind.FORWARD, Kind.BACKWARD, Kind.STEP, Kind.TIDY, Kind.CLOSURE}),
    Kind.COMPILE: frozenset({OUTERMOST, *Kind} - {Kind.COMPILE}),
    Kind.CLOSURE: frozenset({Kind.STEP}),
    # What only the program opens, by name, and wherever it wants.
    Kind.OTHER: frozenset(),
    Kind.END: frozenset(),
    # What a span turns out to have been, and what only the search for iterations makes.
    Kind.EXHAUSTED: frozenset(),
    Kind.GAP: frozenset(),
}
"""Inside of which spans one of a kind may open."""
_MAY_OPEN: dict[Kind | None, frozenset[Kind]] = {
    top: frozenset(kind for kind in Kind if top in _INSIDE[kind]) for top in (OUTERMOST, *Kind)
}
_MAY_OPEN_IN_NAMED: dict[Kind, frozenset[Kind]] = {
    kind: frozenset({Kind.STEP, Kind.COMPILE} | ({kind} & {Kind.FETCH, Kind.FORWARD})) for kind in Kind
}
"""In a phase that the program named nothing is looked for but what tells iterations, models and loaders apart."""
_MAY_OPEN_OUTERMOST = _MAY_OPEN[OUTERMOST]
_NOTHING: frozenset[Kind] = frozenset()


@dataclass(slots=True)
class Slice:
    """A stretch of a span without its inner spans.

    `owner` is the number of the module, optimizer or loader, 0 for none, negative for batches that the program said it
    goes through; `grad` tells of a forward whether gradients were recorded, `training` whether the module was in
    training mode; `ends` and `begins` whether the span did so with the slice. `phase` is the one that the program
    itself named around it; None where the kind tells it.
    """

    kind: Kind
    start_ns: int
    end_ns: int
    owner: int
    grad: bool = True
    training: bool = True
    ends: bool = False
    start_event: Any = None
    end_event: Any = None
    """CUDA events at both ends; None where there is no GPU at work."""
    phase: str | None = None
    begins: bool = True


class _Span:
    __slots__ = ("begins", "first_slice", "grad", "kind", "may_open", "owner", "phase", "training")

    def __init__(self, kind: Kind, owner: int, grad: bool, training: bool, first_slice: int, phase: str | None,
                 may_open: frozenset[Kind]) -> None:
        self.kind, self.owner, self.grad, self.training = kind, owner, grad, training
        self.first_slice, self.phase, self.may_open = first_slice, phase, may_open
        self.begins = True  # no slice of it is done yet


class SpanRecorder:
    """Keeps the stack of open spans and the slices that are done.

    Args:
        clock: nanoseconds; the host's monotonic clock by default.
    """

    def __init__(self, clock: Callable[[], int] = perf_counter_ns) -> None:
        self.slices: list[Slice] = []
        self.may_open = _NOTHING
        """Kinds of which a span would be opened now; the time of others belongs to the span that is open."""
        self.new_event: Callable[[], Any] | None = None
        """Records and gives a CUDA event; None where no GPU is at work."""
        self.on_change: Callable[[Kind | None], None] | None = None
        """Told which kind runs from now on, None outside of all: how a profiler's marks follow the slices."""
        self._clock = clock
        self._stack: list[_Span] = []
        self._on = False
        self._top: Kind | None = OUTERMOST
        self._since_ns = 0
        self._since_event: Any = None

    @property
    def on(self) -> bool:
        """Whether anything is recorded."""
        return self._on

    @on.setter
    def on(self, value: bool) -> None:
        self._on = value
        self._settle()

    def is_top(self, kind: Kind) -> bool:
        """Whether a span of a kind is the one that was opened last."""
        return self._top is kind

    def enter(self, kind: Kind, owner: int = 0, *, grad: bool = True, training: bool = True) -> None:
        """Open a span, which must be one that may open."""
        stack, phase = self._stack, None
        if stack:
            self._cut(ends=False)
            phase = stack[-1].phase
        else:
            self._since_ns, self._since_event = self._clock(), self.new_event() if self.new_event else None
        may_open = _MAY_OPEN[kind]
        stack.append(_Span(kind, owner, grad, training, len(self.slices), phase, may_open))
        self._top, self.may_open = kind, may_open if self._on else _NOTHING  # as `_settle` does, at less cost
        if self.on_change is not None:
            self.on_change(kind)

    def enter_named(self, kind: Kind, phase: str, owner: int = 0, *, grad: bool = True) -> None:
        """Open a span of a phase that the program names, wherever; all time inside is that phase's."""
        self._cut(ends=False)
        self._stack.append(_Span(kind, owner, grad, True, len(self.slices), phase, _MAY_OPEN_IN_NAMED[kind]))
        self._settle()

    def leave_named(self) -> None:
        """Close a named span; whether it recorded gradients is known better from the models inside."""
        span = self._stack[-1]
        self.leave()
        forwards = [one for one in self.slices[span.first_slice:] if one.kind is Kind.FORWARD]
        models = [one for one in forwards if one.owner]
        for one in forwards if models else []:
            one.grad, one.training = any(one.grad for one in models), any(one.training for one in models)

    def end_iteration(self, meanwhile: Callable[[], None]) -> None:
        """Note that the program says that an iteration ends here; what is done meanwhile is no iteration's."""
        self._cut(ends=False)
        ended_ns, event = self._since_ns, self._since_event
        meanwhile()
        self._since_ns, self._since_event = self._clock(), self.new_event() if self.new_event else None
        self.slices.append(Slice(Kind.END, ended_ns, self._since_ns, 0, ends=True, start_event=event,
                                 end_event=self._since_event))

    def leave(self) -> None:
        """Close the span that was opened last."""
        self._cut(ends=True)
        self._stack.pop()
        self._settle()

    def leave_as(self, kind: Kind) -> None:
        """Close the span that was opened last, and call it another kind."""
        span = self._stack[-1]
        self.leave()
        for one in self.slices[span.first_slice:]:
            if one.kind is span.kind and one.owner == span.owner:
                one.kind = kind

    def drop(self) -> None:
        """Close the span that was opened last as if it had not been."""
        span = self._stack[-1]
        self.leave()
        del self.slices[span.first_slice:]

    def take(self) -> list[Slice]:
        """Slices that were done since the last call; those of an open span may yet be dropped or be another kind's."""
        taken = self.slices
        self.slices = []
        return taken

    @property
    def idle(self) -> bool:
        """Whether no span is open."""
        return not self._stack

    def _cut(self, *, ends: bool) -> None:
        """End the running slice, if any, and start the next."""
        now_ns, event = self._clock(), self.new_event() if self.new_event else None
        stack = self._stack
        if stack:
            span = stack[-1]
            self.slices.append(Slice(span.kind, self._since_ns, now_ns, span.owner, span.grad, span.training, ends,
                                     self._since_event, event, span.phase, span.begins))
            span.begins = False
        self._since_ns, self._since_event = now_ns, event

    def _settle(self) -> None:
        """Another span is the one that was opened last."""
        stack = self._stack
        if stack:
            top = stack[-1]
            self._top, may_open = top.kind, top.may_open
        else:
            self._top, may_open = OUTERMOST, _MAY_OPEN_OUTERMOST
        self.may_open = may_open if self._on else _NOTHING
        if self.on_change is not None:
            self.on_change(self._top)
