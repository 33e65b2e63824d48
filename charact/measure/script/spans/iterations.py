"""Iterations: intervals of phases, and gaps between them whose phase can be inferred."""

from dataclasses import dataclass, replace
from enum import IntEnum, auto

from charact.measure.script.spans.recorder import Kind, Slice

PHASES = {
    Kind.FETCH: "data", Kind.EXHAUSTED: "data", Kind.COPY: "data", Kind.FORWARD: "forward", Kind.LOSS: "loss",
    Kind.BACKWARD: "backward", Kind.STEP: "update", Kind.UPDATE: "update", Kind.COMMUNICATION: "communication",
    Kind.COMPILE: "other", Kind.OTHER: "other", Kind.UNTRACKED: "update",
}
FETCHES = frozenset({Kind.FETCH, Kind.EXHAUSTED})
_NO_SPANS = frozenset({Kind.CLOSURE, Kind.END, Kind.GAP})
"""Slices without a phase of their own; rules for gaps may give them one."""
_OWNED = frozenset({Kind.FETCH, Kind.FORWARD})
_FOR_OPTIMIZER = frozenset({Kind.LOSS, Kind.BACKWARD, Kind.STEP, Kind.UPDATE})


class Mode(IntEnum):
    """How a model's forward ran."""

    GRADIENTS = auto()
    NO_GRADIENTS = auto()
    METHOD = auto()
    """As a method of the model without gradients, such as `generate`."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A part of an iteration: its phase, its owner (model, optimizer or loader; 0: none), its start and its end.

    The owner of a loss or a backward is the optimizer that steps next, whichever model's gradients it computes. If
    `compiling` is set, the phase is `other`. If `inferred` is set, a rule for gaps determined the phase. `inside` is
    the phase that a communication interrupts; None if it is between phases. `mode` is that of a forward.
    """

    phase: str
    owner: int
    start_ns: int
    end_ns: int
    inferred: bool = False
    compiling: bool = False
    start_event: object = None
    end_event: object = None
    inside: str | None = None
    mode: Mode = Mode.GRADIENTS


@dataclass(frozen=True, slots=True)
class Iteration:
    """An iteration: whether it trains, its start, its end, and intervals without overlap; the rest is `other`."""

    training: bool
    start_ns: int
    end_ns: int
    intervals: list[Interval]
    start_event: object = None
    end_event: object = None


def lasts_ns(one: Interval | Iteration) -> int:
    """Return how long an interval or an iteration lasts (ns): on the device if it has times, else on the host."""
    return between_ns(one.start_ns, one.end_ns, one.start_event, one.end_event)


def between_ns(begin_ns: int, end_ns: int, begin_event: object, end_event: object) -> int:
    """Return the time between two moments (ns), by the device's times of their events if both are known."""
    if isinstance(begin_event, int) and isinstance(end_event, int):
        return end_event - begin_event
    return end_ns - begin_ns


def iteration_of(slices: list[Slice], after: Slice | None, *, training: bool, manual_update: bool = False) -> Iteration:
    """Return an iteration from its slices.

    Args:
        slices: of the iteration; if the first marks the end of the previous iteration, this one begins after it.
        after: first slice of the next iteration; None if the iteration ends with its last slice. It also does where a
            loader has no further batch: what follows an epoch, such as saving, belongs to no iteration.
        training: whether it trains.
        manual_update: whether the program updates its weights without an optimizer.
    """
    first, last = slices[0], slices[-1]
    begins_at_mark = first.kind is Kind.END
    start_ns, start_event = (first.end_ns, first.end_event) if begins_at_mark else (first.start_ns, first.start_event)
    if after is None or (last.kind is Kind.EXHAUSTED and after.kind is not Kind.END):
        end_ns, end_event = last.end_ns, last.end_event
    else:
        end_ns, end_event = after.start_ns, after.start_event
    shown = [one for one in _without_transforms(slices) if one.kind not in _NO_SPANS]
    if not manual_update:
        shown = [one for one in shown if one.kind is not Kind.UNTRACKED]
    owners = _optimizers_ahead(shown) if training else [0] * len(shown)
    intervals = [
        Interval(_phase(one), one.owner if one.kind in _OWNED else owner, one.start_ns, one.end_ns,
                compiling=one.kind is Kind.COMPILE, start_event=one.start_event, end_event=one.end_event, inside=inside,
                mode=Mode.GRADIENTS if one.grad else Mode.METHOD if one.method else Mode.NO_GRADIENTS)
        for one, owner, inside in zip(shown, owners, _interrupted(shown), strict=True)
    ]
    if training:
        edges = Interval("", 0, end_ns, start_ns, start_event=end_event, end_event=start_event)
        mixed = manual_update and first.kind is Kind.GAP
        intervals = _with_gaps(intervals, edges, _phases_of_gaps(shown, owners, manual_update, mixed))
    return Iteration(training, start_ns, end_ns, intervals, start_event, end_event)


def _without_transforms(slices: list[Slice]) -> list[Slice]:
    """Return slices in which the own time of a `torch.func` transform belongs to its forward, loss or backward.

    It is the forward's until the forward ends, then the loss's until the backward, and the backward's from then on. A
    block without gradients is an update only after a backward.
    """
    seen: list[Slice] = []
    current, any_backward = Kind.FORWARD, False
    for one in slices:
        any_backward |= one.kind is Kind.BACKWARD
        if one.kind is Kind.TRANSFORM:
            current = Kind.FORWARD if one.begins else current
            seen.append(replace(one, kind=current, begins=one.begins and one.ends))
            continue
        if one.kind in (Kind.FORWARD, Kind.LOSS) and one.ends and current is not Kind.BACKWARD:
            current = Kind.LOSS
        elif one.kind is Kind.BACKWARD:
            current = Kind.BACKWARD
        if one.kind is not Kind.UNTRACKED or any_backward:
            seen.append(one)
    return seen


def _phase(one: Slice) -> str:
    """Return the phase of a slice: the one that the program named, except for compilation."""
    return PHASES[one.kind] if one.phase is None or one.kind is Kind.COMPILE else one.phase


def _interrupted(slices: list[Slice]) -> list[str | None]:
    """Return for each communication the phase inside which it ran: that of the slice before, if its span goes on."""
    return [_phase(before) if one.kind is Kind.COMMUNICATION and before is not None and not before.ends else None
            for before, one in zip([None, *slices], slices, strict=False)]


def _optimizers_ahead(slices: list[Slice]) -> list[int]:
    """Return for each loss, backward and update the optimizer that steps next, its owner; 0 for other slices."""
    ahead: list[int] = []
    following = 0
    for one in reversed(slices):
        if one.kind is Kind.STEP:
            following = one.owner
        ahead.append(following if one.kind in _FOR_OPTIMIZER else 0)
    return ahead[::-1]


def _phases_of_gaps(slices: list[Slice], owners: list[int], manual_update: bool, mixed: bool
                    ) -> list[tuple[str, int] | None]:
    """Return phase and owner of the gap before each slice, and of the gap after the last; None if no rule applies.

    - After a forward, or another backward, until a backward: the loss, computed without a module. Not after a recorded
      loss: then the program does other work.
    - Before the loss, if no forward was recorded since the last fetch or step (a function compiled as a whole): the
      forward. Not if the first gap is `mixed`: then it also contains the update of the previous iteration.
    - After the last backward: the update, if no optimizer does it. Not without a data loader: then the gap may also
      contain the creation of the next batch.
    """
    phases: list[tuple[str, int] | None] = [None] * (len(slices) + 1)
    gaps: list[tuple[int, str | None]] = []  # their phases if a backward follows
    phase = None if mixed else "forward"
    has_loss = False
    last_backward = len(slices)
    for index, one in enumerate(slices):
        gaps.append((index, phase))
        if one.kind is Kind.BACKWARD:
            for gap, its_phase in gaps if one.begins else []:
                if its_phase is not None:
                    phases[gap] = its_phase, owners[index] if its_phase == "loss" else 0
            gaps, phase, last_backward = [], None if has_loss else "loss", index
        elif one.kind is Kind.FORWARD and one.grad:
            gaps = []
            if one.begins:
                phase, has_loss = "loss", False
        elif one.kind in (Kind.FETCH, Kind.STEP):
            gaps, phase, has_loss = [], "forward", False
        elif one.kind is Kind.LOSS:
            phase, has_loss = None, True
        elif phase == "forward" and one.kind in (Kind.COPY, Kind.FORWARD):
            gaps = []
    if manual_update and any(one.kind in FETCHES for one in slices):
        phases[last_backward + 1:] = [("update", 0)] * (len(slices) - last_backward)
    return phases


def _with_gaps(intervals: list[Interval], edges: Interval, phases: list[tuple[str, int] | None]) -> list[Interval]:
    """Add the gaps that have a phase to the intervals; `edges` ends at the iteration's start and begins at its end."""
    filled: list[Interval] = []
    for before, after, phase in zip([edges, *intervals], [*intervals, edges], phases, strict=True):
        if phase is not None and before.end_ns < after.start_ns:
            filled.append(Interval(*phase, before.end_ns, after.start_ns, inferred=True, start_event=before.end_event,
                                   end_event=after.start_event))
        filled.append(after)
    return filled[:-1]
