"""What an iteration consists of: stretches of phases, and gaps between them whose phase is plain."""

from dataclasses import dataclass

from charact.measure.script.spans.recorder import Kind, Slice

PHASES = {
    Kind.FETCH: "data", Kind.EXHAUSTED: "data", Kind.COPY: "data", Kind.FORWARD: "forward", Kind.LOSS: "loss",
    Kind.BACKWARD: "backward", Kind.STEP: "update", Kind.TIDY: "update", Kind.COMMUNICATION: "communication",
    Kind.COMPILE: "other", Kind.OTHER: "other",
}
_NO_SPANS = frozenset({Kind.CLOSURE, Kind.END, Kind.GAP})
"""Slices that are no part of a phase, but may become one by the rules for gaps."""
_OWNED = frozenset({Kind.FETCH, Kind.FORWARD})
_FOR_OPTIMIZER = frozenset({Kind.LOSS, Kind.BACKWARD, Kind.STEP, Kind.TIDY})


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of an iteration: a phase, the model, optimizer or loader that it belongs to (0: none), its ends.

    The phase is `other` for compilation; `inferred` tells a gap that a rule gave a phase.
    """

    phase: str
    owner: int
    start_ns: int
    end_ns: int
    inferred: bool = False
    compiling: bool = False
    start_event: object = None
    end_event: object = None


@dataclass(frozen=True, slots=True)
class Iteration:
    """An iteration: whether it trains, its ends, and its stretches, which do not overlap; the rest is `other`."""

    training: bool
    start_ns: int
    end_ns: int
    stretches: list[Stretch]
    start_event: object = None
    end_event: object = None


def iteration_of(slices: list[Slice], after: Slice | None, *, training: bool, by_hand: bool = False) -> Iteration:
    """An iteration from its slices.

    Args:
        slices: its own; where the first is the end that the program told of the one before, it begins after that.
        after: where the next begins; None if it ends with its last slice.
        training: whether it trains.
        by_hand: whether the program updates its weights without an optimizer.
    """
    first, last = slices[0], slices[-1]
    told = first.kind is Kind.END
    start_ns, start_event = (first.end_ns, first.end_event) if told else (first.start_ns, first.start_event)
    end_ns, end_event = (last.end_ns, last.end_event) if after is None else (after.start_ns, after.start_event)
    shown = [one for one in slices if one.kind not in _NO_SPANS]
    owners = _optimizers_ahead(shown) if training else [0] * len(shown)
    stretches = [
        Stretch(_phase(one), one.owner if one.kind in _OWNED else owner, one.start_ns, one.end_ns,
                compiling=one.kind is Kind.COMPILE, start_event=one.start_event, end_event=one.end_event)
        for one, owner in zip(shown, owners, strict=True)
    ]
    if training:
        edges = Stretch("", 0, end_ns, start_ns, start_event=end_event, end_event=start_event)
        mixed = by_hand and first.kind is Kind.GAP
        stretches = _with_gaps(stretches, edges, _phases_of_gaps(shown, owners, by_hand, mixed))
    return Iteration(training, start_ns, end_ns, stretches, start_event, end_event)


def _phase(one: Slice) -> str:
    """Phase of a slice: the one that the program named, but for compilation, which is told apart."""
    return PHASES[one.kind] if one.phase is None or one.kind is Kind.COMPILE else one.phase


def _optimizers_ahead(slices: list[Slice]) -> list[int]:
    """For each slice the optimizer that steps next: losses, backwards and updates are on its behalf; 0 for others."""
    ahead: list[int] = []
    following = 0
    for one in reversed(slices):
        if one.kind is Kind.STEP:
            following = one.owner
        ahead.append(following if one.kind in _FOR_OPTIMIZER else 0)
    return ahead[::-1]


def _phases_of_gaps(slices: list[Slice], owners: list[int], by_hand: bool, mixed: bool
                    ) -> list[tuple[str, int] | None]:
    """By place the phase and owner of the gap before each slice, and of the one after all; None where no rule has any.

    From the end of a forward to the start of the backward after it a loss is computed by hand, and so it is between
    two backwards. Where no forward was seen since the last fetch or step, as in a function that was compiled whole, it
    fills the gap before the loss; but not where the gap is `mixed` with an update by hand, between which and the next
    iteration nothing was seen either. What follows the last backward is the update where no optimizer does it.
    """
    phases: list[tuple[str, int] | None] = [None] * (len(slices) + 1)
    gaps: list[tuple[int, str | None]] = []  # what they are if a backward follows
    phase = None if mixed else "forward"
    last_backward = len(slices)
    for place, one in enumerate(slices):
        gaps.append((place, phase))
        if one.kind is Kind.BACKWARD:
            for gap, its_phase in gaps if one.begins else []:
                if its_phase is not None:
                    phases[gap] = its_phase, owners[place] if its_phase == "loss" else 0
            gaps, phase, last_backward = [], "loss", place
        elif one.kind is Kind.FORWARD and one.grad:
            gaps, phase = [], "loss"
        elif one.kind in (Kind.FETCH, Kind.STEP):
            gaps, phase = [], "forward"
        elif one.kind is Kind.LOSS:
            phase = "loss"
        elif phase == "forward" and one.kind in (Kind.COPY, Kind.TIDY, Kind.FORWARD):
            gaps = []
    for place in range(last_backward + 1, len(phases)) if by_hand else []:
        phases[place] = "update", 0
    return phases


def _with_gaps(stretches: list[Stretch], edges: Stretch, phases: list[tuple[str, int] | None]) -> list[Stretch]:
    """Stretches with those of the gaps that have a phase; `edges` ends where the iteration starts, and vice versa."""
    filled: list[Stretch] = []
    for before, after, phase in zip([edges, *stretches], [*stretches, edges], phases, strict=True):
        if phase is not None and before.end_ns < after.start_ns:
            filled.append(Stretch(*phase, before.end_ns, after.start_ns, inferred=True, start_event=before.end_event,
                                  end_event=after.start_event))
        filled.append(after)
    return filled[:-1]
