"""Recorder of spans, the program's nested calls into PyTorch, as slices of exclusive time. No torch in here.

Spans nest: a loss inside a model's forward, a closure inside an optimizer's step. A slice is an interval of one span in
which no inner span ran. Slices never overlap and are in order of time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, auto
from time import perf_counter_ns
from typing import Any


class Kind(IntEnum):
    """Kind of a span, which determines its phase."""

    __hash__ = int.__hash__  # Enum's own hash costs more than the rest of a call that opens no span

    FETCH = auto()
    """Fetch of a batch from a data loader."""
    COPY = auto()
    """Copy of a tensor from the host to a device."""
    FORWARD = auto()
    LOSS = auto()
    BACKWARD = auto()
    STEP = auto()
    """Step of an optimizer, alone or inside a gradient scaler's."""
    UPDATE = auto()
    """Part of the update besides the step: zeroing, clipping and unscaling gradients."""
    COMMUNICATION = auto()
    COMPILE = auto()
    CLOSURE = auto()
    """Closure in which an optimizer's step recomputes the loss; its exclusive time is a gap."""
    OTHER = auto()
    """Phase that the program named `other`."""
    END = auto()
    """Not a span: from an iteration's end, marked by the program, to the earliest start of the next."""
    EXHAUSTED = auto()
    """Fetch that finds no further batch."""
    GAP = auto()
    """Not a span: time from a step to a backward without a recorded forward."""
    TRANSFORM = auto()
    """Call of a function of `torch.func`, which computes a forward, and a backward unless it is a `vjp`."""
    UNTRACKED = auto()
    """Not a span: outermost block without gradients (`torch.no_grad`) in which no span opened."""


PHASES = {
    Kind.FETCH: "data", Kind.EXHAUSTED: "data", Kind.COPY: "data", Kind.FORWARD: "forward", Kind.LOSS: "loss",
    Kind.BACKWARD: "backward", Kind.STEP: "update", Kind.UPDATE: "update", Kind.COMMUNICATION: "communication",
    Kind.COMPILE: "other", Kind.OTHER: "other", Kind.UNTRACKED: "update",
}
ZEROED = 1
"""Owner of an `UPDATE` that sets gradients to zero."""
OUTERMOST = None
_INSIDE: dict[Kind, frozenset[Kind | None]] = {
    Kind.FETCH: frozenset({OUTERMOST, Kind.CLOSURE}),
    Kind.COPY: frozenset({OUTERMOST, Kind.CLOSURE, Kind.TRANSFORM}),
    # A forward that is recomputed inside a backward belongs to the backward; inside a step, to its closure.
    Kind.FORWARD: frozenset({OUTERMOST, Kind.STEP, Kind.CLOSURE, Kind.TRANSFORM}),
    Kind.LOSS: frozenset({OUTERMOST, Kind.FORWARD, Kind.STEP, Kind.CLOSURE, Kind.TRANSFORM}),
    Kind.BACKWARD: frozenset({OUTERMOST, Kind.FORWARD, Kind.LOSS, Kind.STEP, Kind.CLOSURE, Kind.TRANSFORM}),
    Kind.STEP: frozenset({OUTERMOST, Kind.BACKWARD, Kind.UPDATE}),
    Kind.UPDATE: frozenset({OUTERMOST, Kind.STEP, Kind.CLOSURE}),
    Kind.COMMUNICATION: frozenset({OUTERMOST, Kind.FORWARD, Kind.BACKWARD, Kind.STEP, Kind.UPDATE, Kind.CLOSURE,
                                   Kind.TRANSFORM}),
    Kind.COMPILE: frozenset({OUTERMOST, *Kind} - {Kind.COMPILE}),
    Kind.CLOSURE: frozenset({Kind.STEP}),
    # Only the program opens these, by name, anywhere.
    Kind.OTHER: frozenset(),
    Kind.END: frozenset(),
    # Assigned when a span closes, or by the segmenter.
    Kind.EXHAUSTED: frozenset(),
    Kind.GAP: frozenset(),
    Kind.TRANSFORM: frozenset({OUTERMOST, Kind.STEP, Kind.CLOSURE}),
    Kind.UNTRACKED: frozenset(),
}
"""Spans inside which a span of a kind may open."""
_MAY_OPEN: dict[Kind | None, frozenset[Kind]] = {
    top: frozenset(kind for kind in Kind if top in _INSIDE[kind]) for top in (OUTERMOST, *Kind)
}
_MAY_OPEN_IN_ANNOTATED: dict[Kind, frozenset[Kind]] = {
    kind: frozenset({Kind.STEP, Kind.COMPILE} | ({kind} & {Kind.FETCH, Kind.FORWARD})) for kind in Kind
}
"""Kinds that may open in a phase named by the program: only those that identify iterations, models and loaders."""
_MAY_OPEN_OUTERMOST = _MAY_OPEN[OUTERMOST]
_NOTHING: frozenset[Kind] = frozenset()
_TRAINS: frozenset[Kind] = frozenset({Kind.BACKWARD, Kind.STEP})


@dataclass(slots=True)
class Slice:
    """Interval of a span without its inner spans.

    `owner` is the ID of the module, optimizer or loader: 0 for none, negative for batches of `Profiler.iterate`.
    `grad`: a forward recorded gradients. `training`: the module was in training mode. `begins`, `ends`: the span begins
    or ends with this slice. `phase`: named by the program; None if the kind determines it. `method`: a forward is a
    method of the module other than `forward`.
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
    """Events of the device at both ends; None without a GPU in use."""
    phase: str | None = None
    begins: bool = True
    method: bool = False


class _Span:
    __slots__ = ("begins", "first_slice", "grad", "kind", "may_open", "method", "owner", "phase", "training")

    def __init__(self, kind: Kind, owner: int, grad: bool, training: bool, first_slice: int, phase: str | None,
                 may_open: frozenset[Kind], method: bool = False) -> None:
        self.kind, self.owner, self.grad, self.training = kind, owner, grad, training
        self.first_slice, self.phase, self.may_open = first_slice, phase, may_open
        self.begins = True  # no slice of it has ended yet
        self.method = method


class SpanRecorder:
    """Stack of open spans, and the slices that have ended."""

    def __init__(self, clock: Callable[[], int] = perf_counter_ns) -> None:
        self.slices: list[Slice] = []
        self.may_open = _NOTHING
        """Kinds that may open now; calls of other kinds belong to the open span."""
        self.new_event: Callable[[], Any] | None = None
        """Records and returns an event of the device; None without a GPU in use."""
        self.keeps = False
        """Whether the slices have to stay until later: somebody compares them before and after a call."""
        self.on_change: Callable[[Kind | None], None] | None = None
        """Called with the kind that runs from now on, None outside of all spans: for profiler annotations."""
        self.on_open: Callable[[Kind, int, bool], None] | None = None
        """Called before an outermost span opens, to begin an iteration there: with kind, owner, and `Slice.method`."""
        self._clock = clock
        self._stack: list[_Span] = []
        self._on = False
        self.top: Kind | None = OUTERMOST
        """Kind of the innermost open span; None if no span is open."""
        self.changed_ns = 0
        """Time at which a span last began or ended."""
        self._since_event: Any = None

    @property
    def on(self) -> bool:
        """Whether spans are recorded."""
        return self._on

    @on.setter
    def on(self, value: bool) -> None:
        self._on = value
        self._update_top()

    def stop_in_child(self, on_open: Callable[[Kind, int, bool], None]) -> None:
        """Stop recording in a forked child, but report the first backward or step that it computes."""
        self._stack, self.slices, self.on_change = [], [], None
        self.on, self.on_open, self.may_open = False, on_open, _TRAINS

    def enter(self, kind: Kind, owner: int = 0, *, grad: bool = True, training: bool = True,
              method: bool = False) -> None:
        """Open a span of a kind in `may_open`; see `Slice`."""
        stack, phase = self._stack, None
        if stack:
            self._cut(ends=False)
            phase = stack[-1].phase
        else:
            if self.on_open is not None:
                self.on_open(kind, owner, method)
            self.changed_ns, self._since_event = self._clock(), self.new_event() if self.new_event else None
        may_open = _MAY_OPEN[kind]
        stack.append(_Span(kind, owner, grad, training, len(self.slices), phase, may_open, method))
        self.top, self.may_open = kind, may_open if self._on else _NOTHING  # like `_update_top`, but faster
        if self.on_change is not None:
            self.on_change(kind)

    def enter_annotated(self, kind: Kind, phase: str, owner: int = 0, *, grad: bool = True) -> None:
        """Open a span of a phase that the program names, anywhere; all time inside belongs to that phase."""
        self._cut(ends=False)
        self._stack.append(_Span(kind, owner, grad, True, len(self.slices), phase, _MAY_OPEN_IN_ANNOTATED[kind]))
        self._update_top()

    def leave_annotated(self) -> None:
        """Close a named span; the models inside determine whether it recorded gradients."""
        span = self._stack[-1]
        self.leave()
        forwards = [each for each in self.slices[span.first_slice:] if each.kind is Kind.FORWARD]
        models = [each for each in forwards if each.owner]
        for forward in forwards if models else []:
            forward.grad, forward.training = any(each.grad for each in models), any(each.training for each in models)

    def end_iteration(self, action: Callable[[], None]) -> None:
        """Record that the program ends an iteration here; the time of `action` belongs to no iteration."""
        self._cut(ends=False)
        ended_ns, event = self.changed_ns, self._since_event
        action()
        self.changed_ns, self._since_event = self._clock(), self.new_event() if self.new_event else None
        self.slices.append(Slice(Kind.END, ended_ns, self.changed_ns, 0, ends=True, start_event=event,
                                 end_event=self._since_event))

    def begin_untracked(self) -> tuple[int, int, Any] | None:
        """Return the last change, the time (ns) and an event before a block without gradients; None inside of spans."""
        if self._stack or not self._on:
            return None
        return self.changed_ns, self._clock(), self.new_event() if self.new_event else None

    def end_untracked(self, begun: tuple[int, int, Any], shortest_ns: int) -> None:
        """Record a block that ends now if no span opened in it, and if it was not shorter than a time."""
        changed_ns, start_ns, start_event = begun
        now_ns = self._clock()
        if self._stack or not self._on or changed_ns != self.changed_ns or now_ns - start_ns < shortest_ns:
            return
        event = self.new_event() if self.new_event else None
        self.slices.append(Slice(Kind.UNTRACKED, start_ns, now_ns, 0, ends=True, start_event=start_event,
                                 end_event=event))
        self.changed_ns, self._since_event = now_ns, event

    def leave(self) -> None:
        """Close the innermost span."""
        self._cut(ends=True)
        self._stack.pop()
        self._update_top()

    def leave_as(self, kind: Kind) -> None:
        """Close the innermost span and change its kind."""
        span = self._stack[-1]
        self.leave()
        for each in self.slices[span.first_slice:]:
            if each.kind is span.kind and each.owner == span.owner:
                each.kind = kind

    def drop(self) -> None:
        """Close the innermost span and delete its slices."""
        span = self._stack[-1]
        self.leave()
        del self.slices[span.first_slice:]

    def forget_events(self) -> None:
        """Remove the events of all slices so far: the program moved to another device."""
        self._since_event = None
        for each in self.slices:
            each.start_event = each.end_event = None

    def take(self) -> list[Slice]:
        """Return the slices that ended since the last call; call it while no span is open."""
        taken, self.slices = self.slices, []
        return taken

    @property
    def idle(self) -> bool:
        """Whether no span is open."""
        return not self._stack

    def _cut(self, *, ends: bool) -> None:
        """End the current slice, if any, and start the next."""
        now_ns, event = self._clock(), self.new_event() if self.new_event else None
        stack = self._stack
        if stack:
            span = stack[-1]
            self.slices.append(Slice(span.kind, self.changed_ns, now_ns, span.owner, span.grad, span.training, ends,
                                     self._since_event, event, span.phase, span.begins, span.method))
            span.begins = False
        self.changed_ns, self._since_event = now_ns, event

    def _update_top(self) -> None:
        """Update the state that depends on the innermost span."""
        stack = self._stack
        if stack:
            top = stack[-1]
            self.top, may_open = top.kind, top.may_open
        else:
            self.top, may_open = OUTERMOST, _MAY_OPEN_OUTERMOST
        self.may_open = may_open if self._on else _NOTHING
        if self.on_change is not None:
            self.on_change(self.top)
