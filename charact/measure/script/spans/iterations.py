"""Iterations from slices, and cycles: iterations of several steps. No torch in here."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import dropwhile, pairwise
from typing import NamedTuple

from charact.core.gap_phases import gap_phases
from charact.core.timeline import Interval, Iteration, Mode
from charact.measure.script.spans.recorder import PHASES, Kind, Slice

FETCHES = frozenset({Kind.FETCH, Kind.EXHAUSTED})
_NO_SPANS = frozenset({Kind.CLOSURE, Kind.END, Kind.GAP})
"""Slices without a phase of their own; rules for gaps may give them one."""
_OWNED = frozenset({Kind.FETCH, Kind.FORWARD})
_FOR_OPTIMIZER = frozenset({Kind.LOSS, Kind.BACKWARD, Kind.STEP, Kind.UPDATE})
_ROLES = {Kind.FETCH: "restart", Kind.STEP: "restart", Kind.LOSS: "loss", Kind.BACKWARD: "backward",
          Kind.COPY: "apart"}

MAX_WARMUP_ITERATIONS = 3
"""Largest number of iterations left out as warm-up by default; at most a quarter of all are."""
MOST_STEPS = 32
"""Largest number of steps in a cycle."""
_FEWEST_CYCLES = 3
_REGULAR_FRAC = 0.8
"""Share of the cycles that have the usual number of steps."""


class Segment(NamedTuple):
    """Slices of an iteration, see `iteration_of`."""

    slices: list[Slice]
    after: Slice | None
    training: bool
    manual_update: bool = False

    def iteration(self) -> Iteration:
        """Return the iteration."""
        return iteration_of(self.slices, self.after, training=self.training, manual_update=self.manual_update)


def iteration_of(slices: list[Slice], after: Slice | None, *, training: bool, manual_update: bool = False) -> Iteration:
    """Return an iteration from its slices.

    Args:
        slices: of the iteration; if the first marks the end of the previous iteration, this one begins after it.
        after: first slice of the next iteration; None if the iteration ends with its last slice. It also does where a
            loader has no further batch: what follows an epoch, such as saving, belongs to no iteration.
        training: whether it trains.
        manual_update: whether the program updates its weights without an optimizer.
    """
    if not manual_update:  # a block without gradients is no part of what follows, such as the model's initialization
        slices = list(dropwhile(lambda each: each.kind is Kind.UNTRACKED, slices)) or slices
    first, last = slices[0], slices[-1]
    begins_at_mark = first.kind is Kind.END
    start_ns, start_event = (first.end_ns, first.end_event) if begins_at_mark else (first.start_ns, first.start_event)
    if after is None or (last.kind is Kind.EXHAUSTED and after.kind is not Kind.END):
        end_ns, end_event = last.end_ns, last.end_event
    else:
        end_ns, end_event = after.start_ns, after.start_event
    slices = [each for each in _without_transforms(slices) if each.kind not in _NO_SPANS
              and (manual_update or each.kind is not Kind.UNTRACKED)]
    owners = _optimizers_ahead(slices) if training else [0] * len(slices)
    intervals = []
    for before, each, owner in zip([None, *slices], slices, owners, strict=False):
        in_phase = each.kind is Kind.COMMUNICATION and before is not None and not before.ends  # its span goes on
        intervals.append(Interval(
            _phase(each), each.start_ns, each.end_ns, each.owner if each.kind in _OWNED else owner,
            each.start_event, each.end_event, compiling=each.kind is Kind.COMPILE,
            inside=_phase(before) if in_phase and before is not None else None,
            mode=Mode.GRADIENTS if each.grad else Mode.METHOD if each.method else Mode.NO_GRADIENTS,
            begins=each.begins))
    iteration = Iteration(start_ns, end_ns, intervals, start_event, end_event, training)
    if not training:
        return iteration
    gaps = _gaps(slices, owners, manual_update, mixed=manual_update and first.kind is Kind.GAP)
    return replace(iteration, intervals=_with_gaps(iteration, gaps))


def _without_transforms(slices: list[Slice]) -> list[Slice]:
    """Return slices in which the own time of a `torch.func` transform belongs to its forward, loss or backward.

    It is the forward's until the forward ends, then the loss's until the backward, and the backward's from then on. A
    block without gradients is an update only after a backward.
    """
    seen: list[Slice] = []
    current, any_backward = Kind.FORWARD, False
    for each in slices:
        any_backward |= each.kind is Kind.BACKWARD
        if each.kind is Kind.TRANSFORM:
            current = Kind.FORWARD if each.begins else current
            seen.append(replace(each, kind=current, begins=each.begins and each.ends))
            continue
        if each.kind in (Kind.FORWARD, Kind.LOSS) and each.ends and current is not Kind.BACKWARD:
            current = Kind.LOSS
        elif each.kind is Kind.BACKWARD:
            current = Kind.BACKWARD
        if each.kind is not Kind.UNTRACKED or any_backward:
            seen.append(each)
    return seen


def _phase(each: Slice) -> str:
    return PHASES[each.kind] if each.phase is None or each.kind is Kind.COMPILE else each.phase


def _optimizers_ahead(slices: list[Slice]) -> list[int]:
    """Return for each loss, backward and update the optimizer that steps next, its owner; 0 for other slices."""
    ahead: list[int] = []
    following = 0
    for each in reversed(slices):
        if each.kind is Kind.STEP:
            following = each.owner
        ahead.append(following if each.kind in _FOR_OPTIMIZER else 0)
    return ahead[::-1]


def _gaps(slices: list[Slice], owners: list[int], manual_update: bool, mixed: bool) -> list[tuple[str, int] | None]:
    """Return phase and owner of the gap before each slice, and of the gap after the last; None if no rule applies.

    The rules are those of `gap_phases`, and after the last backward: the update, if no optimizer does it. Not without a
    data loader: then the gap may also contain the creation of the next batch. If the first gap is `mixed`, it also
    contains the update of the previous iteration.
    """
    roles = [("forward" if each.grad else "apart") if each.kind is Kind.FORWARD else _ROLES.get(each.kind)
             for each in slices]
    found = gap_phases([(role, each.begins) for role, each in zip(roles, slices, strict=True)],
                       None if mixed else "forward")
    gaps = [None if gap is None else (gap[0], owners[gap[1]] if gap[0] == "loss" else 0) for gap in [*found, None]]
    if manual_update and any(each.kind in FETCHES for each in slices):
        after = max((index + 1 for index, each in enumerate(slices) if each.kind is Kind.BACKWARD),
                    default=len(slices) + 1)
        gaps[after:] = [("update", 0)] * (len(gaps) - after)
    return gaps


def _with_gaps(iteration: Iteration, gaps: list[tuple[str, int] | None]) -> list[Interval]:
    """Return the intervals of an iteration with the gaps between them that have a phase and an owner."""
    filled: list[Interval] = []
    reached_ns, reached_device_ns = iteration.start_ns, iteration.start_device_ns
    end = Interval("", iteration.end_ns, iteration.end_ns, start_device_ns=iteration.end_device_ns)
    for interval, gap in zip([*iteration.intervals, end], gaps, strict=True):
        if gap is not None and reached_ns < interval.start_ns:
            filled.append(Interval(gap[0], reached_ns, interval.start_ns, gap[1], reached_device_ns,
                                   interval.start_device_ns, inferred=True))
        filled.append(interval)
        reached_ns, reached_device_ns = interval.end_ns, interval.end_device_ns
    return filled[:-1]


def join_cycles(iterations: Sequence[Iteration]) -> list[Iteration]:
    """Return the iterations of a whole program, in which the steps of each cycle are one iteration.

    A cycle is several steps from one fetch, or one rollout, to the next. If training iterations regularly begin with a
    fetch at every k-th (k from 2 to 32), k of them are one: a rollout and the policy steps on it, or the minibatches of
    a large batch. If nothing is fetched, inference that precedes every k-th training iteration, also the first, begins
    a cycle: a rollout. Inference that follows the training, such as a validation, does not. More steps than 32 are an
    epoch, of which each step is an iteration. Inference between the steps of a cycle is part of it.
    """
    trainings = [index for index, each in enumerate(iterations) if each.training]
    starts: list[int] = []
    if any(_fetches(iterations[index]) for index in trainings):  # those that begin with a fetch
        for index in trainings:
            first = next((each for each in iterations[index].intervals
                          if each.phase == "backward" or (each.phase == "data" and each.owner)), None)
            starts += [index] if first is not None and first.phase == "data" else []
    elif trainings and trainings[0] > 0 and trainings[-1] == len(iterations) - 1 and not any(
            map(_fetches, iterations)):  # blocks of inference, if training follows each one
        starts = [0, *(index for index, (before, each) in enumerate(pairwise(iterations), 1)
                       if before.training and not each.training)]
    num_steps = _usual_number([sum(each.training for each in iterations[begin:end]) for begin, end in pairwise(starts)])
    if num_steps is None:
        return list(iterations)
    joined = list(iterations[:starts[0]])
    for begin, end in pairwise([*starts, len(iterations)]):
        steps = [index for index in range(begin, end) if iterations[index].training][:num_steps]
        after = steps[-1] + 1 if steps else begin
        if steps:
            cycle = iterations[begin:after]
            joined.append(replace(
                cycle[0], training=True, intervals=[interval for each in cycle for interval in each.intervals],
                end_ns=cycle[-1].end_ns, end_device_ns=cycle[-1].end_device_ns))
        joined += iterations[after:end]
    return joined


def _usual_number(numbers: Sequence[int]) -> int | None:
    """Return the usual number of steps of a cycle; None if there is none, or if each step is an iteration."""
    if len(numbers) < _FEWEST_CYCLES:
        return None
    number, count = Counter(numbers).most_common(1)[0]
    return number if 2 <= number <= MOST_STEPS and count >= _REGULAR_FRAC * len(numbers) else None


def _fetches(iteration: Iteration) -> bool:
    return any(each.phase == "data" and each.owner for each in iteration.intervals)


class StepCounter:
    """Recognizes cycles while a program runs, from its steps and the starts of rollouts, as `join_cycles` does."""

    def __init__(self) -> None:
        self._since = 0
        """Number of steps since the last start, one more than `MOST_STEPS` at most."""
        self._numbers: list[int] = []
        """Numbers of steps of the last cycles."""
        self.num_steps: int | None = None
        """Usual one of these; None if each step is an iteration."""
        self._any_fetch = self._any_step = self._infers_first = False

    @property
    def begins_with_inference(self) -> bool:
        """Whether cycles begin with inference, a rollout: the program inferred first, and fetches nothing."""
        return self._infers_first and not self._any_fetch

    def fetch(self) -> None:
        """Take a fetch into account."""
        if not self._any_fetch:
            self._any_fetch, self._since, self._numbers, self.num_steps = True, 0, [], None
        self._start()

    def infer(self) -> None:
        """Take a forward without gradients into account; it counts only if nothing is fetched."""
        self._infers_first |= not self._any_step
        if self.begins_with_inference:
            self._start()

    def step(self) -> bool:
        """Take a step into account; return whether it ends an iteration."""
        self._any_step = True
        self._since = min(self._since + 1, MOST_STEPS + 1)
        return self.num_steps is None or self._since >= self.num_steps

    def _start(self) -> None:
        if self._since:
            numbers = [*self._numbers[1 - _FEWEST_CYCLES:], self._since]
            if numbers != self._numbers:  # rarely: this runs in each iteration
                self._numbers, self.num_steps = numbers, _usual_number(numbers)
        self._since = 0
