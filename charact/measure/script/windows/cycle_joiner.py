"""Cycles of several steps, joined to one iteration each while the program runs. No torch in here."""

from copy import deepcopy

from charact.measure.script.spans.iterations import StepCounter
from charact.measure.script.windows.phase_times import IterationTimes

_MOST_WAITING = 20_000
"""Largest number of inferences that wait for a step; more are an evaluation."""


class CycleJoiner:
    """Joins the steps from one fetch or rollout to the next.

    Unlike `join_cycles`, it knows no later iterations: cycles are regular if the last three had as many steps, whatever
    the others had. `steps` has counted the steps so far.
    """

    def __init__(self, steps: StepCounter) -> None:
        self._steps = steps
        self._cycle: list[IterationTimes] = []

    def take(self, current: IterationTimes) -> list[IterationTimes]:
        """Return the iterations that this one completes."""
        steps, done = self._steps, []
        if current.training:
            if current.fetches_first:
                done = self.rest()
                steps.fetch()
            self._cycle.append(current)
            return done + self.rest() if steps.step() else done
        if not current.fetches:
            steps.infer()
        if steps.begins_with_inference and any(each.training for each in self._cycle[-1:]):
            done = self.rest()
        if not self._cycle and (steps.num_steps is None or not steps.begins_with_inference):
            return [*done, current]
        self._cycle.append(current)
        return done + self.rest() if len(self._cycle) > _MOST_WAITING else done

    def passes_on(self, current: IterationTimes) -> bool:
        """Return whether `take` returns an iteration like this one alone, however often it recurs."""
        later = deepcopy(self)
        return later.take(current) == [current] and vars(later._steps) == vars(self._steps) and not self._cycle

    def rest(self) -> list[IterationTimes]:
        """Return the iterations of a cycle that is not complete, joined if it has a training step."""
        cycle, self._cycle = self._cycle, []
        if len(cycle) < 2 or not any(each.training for each in cycle):
            return cycle
        phase_ns: dict[str, int] = {}
        for each in cycle:
            for phase, time_ns in each.phase_ns.items():
                phase_ns[phase] = phase_ns.get(phase, 0) + time_ns
        return [cycle[0]._replace(training=True, phase_ns=phase_ns, wall_ns=sum(each.wall_ns for each in cycle))]
