"""Current speed and bottleneck of a running program, from its latest iterations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from statistics import median

BOUND_FRAC = 0.3
"""Share of the time from which anything but the model's own computation bounds a program."""
_NO_COMPUTING = ("data", "communication", "other")


@dataclass(frozen=True)
class TimedIteration:
    """A finished iteration: whether it trained, its end (s, any clock), and the time of its phases (s).

    `batch_size` is None if unknown.
    """

    training: bool
    ended_s: float
    phase_s: Mapping[str, float]
    batch_size: int | None = None

    @property
    def wall_s(self) -> float:
        """Wall time (s): the sum of all phases, including `other`."""
        return sum(self.phase_s.values())


@dataclass(frozen=True)
class Speed:
    """The speed of the latest iterations of one mode.

    `median_s` is of an iteration; `samples_per_s` is all samples / all time, or None; `share_frac` has
    a share for each phase; `bottleneck` is the phase to look at; `is_bound` is true if that is data, communication or
    `other`.
    """

    training: bool
    num_iterations: int
    median_s: float
    samples_per_s: float | None
    share_frac: dict[str, float]
    bottleneck: str
    is_bound: bool


def current_speed(latest: Sequence[TimedIteration]) -> Speed:
    """Return the speed of the latest iterations, at least one; only those of the last one's mode count.

    The bottleneck is the largest of data, communication and `other` if it takes 30 % of the time or more; else it is
    the largest phase.
    """
    training = latest[-1].training
    of_mode = [iteration for iteration in latest if iteration.training == training]
    total_s = sum(iteration.wall_s for iteration in of_mode) or 1.0
    phases = dict.fromkeys(phase for iteration in of_mode for phase in iteration.phase_s)
    shares = {phase: sum(iteration.phase_s.get(phase, 0.0) for iteration in of_mode) / total_s for phase in phases}
    idle = max((phase for phase in shares if phase in _NO_COMPUTING), key=shares.__getitem__, default=None)
    is_bound = idle is not None and shares[idle] >= BOUND_FRAC
    bottleneck = idle if idle is not None and is_bound else max(shares, key=shares.__getitem__)
    # Since the first known batch size; later iterations may fetch nothing.
    fetching = list(dropwhile(lambda iteration: iteration.batch_size is None, of_mode))
    fetching_s = sum(iteration.wall_s for iteration in fetching)
    samples_per_s = sum(iteration.batch_size or 0 for iteration in fetching) / fetching_s if fetching_s > 0 else None
    return Speed(training, len(of_mode), median(iteration.wall_s for iteration in of_mode), samples_per_s, shares,
                 bottleneck, is_bound)
