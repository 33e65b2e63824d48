"""Cycles: several steps from one fetch, or one rollout, to the next form one iteration. No torch in here.

If training iterations regularly begin with a fetch at every k-th (k from 2 to 32), k of them are one: a rollout and the
policy steps on it, or the minibatches of a large batch. If nothing is fetched, inference that precedes every k-th
training iteration, also the first, begins a cycle: a rollout. Inference that follows the training, such as a
validation, does not. More steps than 32 are an epoch, of which each step is an iteration.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from charact.measure.script.spans.iterations import Iteration

MOST_STEPS = 32
"""Largest number of steps in a cycle."""
_FEWEST_CYCLES = 3
_REGULAR_FRAC = 0.8
"""Share of the cycles that have the usual number of steps."""


def join_cycles(iterations: Sequence[Iteration]) -> list[Iteration]:
    """Return the iterations of a whole program, in which the steps of each cycle are one iteration.

    Inference between the steps of a cycle, and at its start if it is a rollout, is part of it.
    """
    trainings = [index for index, one in enumerate(iterations) if one.training]
    if any(_fetches(iterations[index]) for index in trainings):
        starts = [index for index in trainings if _begins_with_fetch(iterations[index])]
    else:
        starts = _rollouts(iterations)
    num_steps = _usual_number([sum(one.training for one in iterations[begin:end]) for begin, end in pairwise(starts)])
    if num_steps is None:
        return list(iterations)
    joined = list(iterations[:starts[0]])
    for begin, end in pairwise([*starts, len(iterations)]):
        steps = [index for index in range(begin, end) if iterations[index].training][:num_steps]
        after = steps[-1] + 1 if steps else begin
        joined += [*([_joined(iterations[begin:after])] if steps else []), *iterations[after:end]]
    return joined


def _usual_number(numbers: Sequence[int]) -> int | None:
    """Return the usual number of steps of a cycle; None if there is none, or if each step is an iteration."""
    if len(numbers) < _FEWEST_CYCLES:
        return None
    number, count = Counter(numbers).most_common(1)[0]
    return number if 2 <= number <= MOST_STEPS and count >= _REGULAR_FRAC * len(numbers) else None


def _rollouts(iterations: Sequence[Iteration]) -> list[int]:
    """Return the index at which each block of inference begins; empty unless training follows each one."""
    if not iterations or iterations[0].training or not iterations[-1].training:
        return []
    if any(_fetches(one) for one in iterations):
        return []
    return [0, *(index for index, (before, one) in enumerate(pairwise(iterations), 1)
                 if before.training and not one.training)]


def _fetches(iteration: Iteration) -> bool:
    return any(one.phase == "data" and one.owner for one in iteration.intervals)


def _begins_with_fetch(iteration: Iteration) -> bool:
    """Return whether an iteration fetches before its first backward."""
    for one in iteration.intervals:
        if one.phase == "backward":
            return False
        if one.phase == "data" and one.owner:
            return True
    return False


def _joined(iterations: Sequence[Iteration]) -> Iteration:
    first, last = iterations[0], iterations[-1]
    intervals = [interval for one in iterations for interval in one.intervals]
    return Iteration(True, first.start_ns, last.end_ns, intervals, first.start_event, last.end_event)


class StepCounter:
    """Recognizes cycles while a program runs, from its steps and the starts of rollouts, as `join_cycles` does."""

    def __init__(self) -> None:
        self._since = 0
        """Number of steps since the last start."""
        self._numbers: list[int] = []
        """Numbers of steps of the last cycles."""
        self._num_steps: int | None = None
        """Usual one of these; None if each step is an iteration."""
        self._any_fetch = self._any_step = self._infers_first = False

    def fetch(self) -> None:
        """Take a fetch into account."""
        if not self._any_fetch:
            self._any_fetch, self._since, self._numbers, self._num_steps = True, 0, [], None
        self._start()

    def infer(self) -> None:
        """Take a forward without gradients into account; it counts only if nothing is fetched."""
        self._infers_first |= not self._any_step
        if self._infers_first and not self._any_fetch:
            self._start()

    def step(self) -> bool:
        """Take a step into account; return whether it ends an iteration."""
        self._any_step = True
        self._since += 1
        return self._num_steps is None or self._since >= self._num_steps

    def _start(self) -> None:
        if self._since:
            numbers = [*self._numbers[1 - _FEWEST_CYCLES:], self._since]
            if numbers != self._numbers:  # rarely: this runs in each iteration
                self._numbers, self._num_steps = numbers, _usual_number(numbers)
        self._since = 0
