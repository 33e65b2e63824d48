"""A window: an interval of a program's time, with the times of its iterations and the memory at its end."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from charact.measure.script.windows.time_histogram import Count, TimeHistogram
from charact.record.schema import PHASES

if TYPE_CHECKING:
    import numpy as np

Time = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class ModeTimes(msgspec.Struct, omit_defaults=True):
    """Times of the iterations of one mode in a window, by phase."""

    num_iterations: Count = 0
    wall: TimeHistogram = msgspec.field(default_factory=TimeHistogram)
    phases: dict[str, TimeHistogram] = {}

    def add(self, wall_ns: int, phase_ns: Mapping[str, int]) -> None:
        """Count an iteration; its phases sum to its wall time."""
        self.num_iterations += 1
        self.wall.add(wall_ns)
        for phase, time_ns in phase_ns.items():
            self._phase(phase).add(time_ns)

    def add_all(self, wall_ns: "np.ndarray[Any, np.dtype[np.int64]]",
                phase_ns: Mapping[str, "np.ndarray[Any, np.dtype[np.int64]]"]) -> None:
        """Count several iterations, see `add`."""
        self.num_iterations += len(wall_ns)
        self.wall.add_all(wall_ns)
        for phase, times_ns in phase_ns.items():
            self._phase(phase).add_all(times_ns)

    def merge(self, other: "ModeTimes") -> None:
        """Count the iterations of another window, too."""
        self.num_iterations += other.num_iterations
        self.wall.merge(other.wall)
        for phase, times in other.phases.items():
            self._phase(phase).merge(times)

    @property
    def is_valid(self) -> bool:
        """Whether all phases are known, and no histogram has more times than there are iterations."""
        return self.phases.keys() <= set(PHASES) and all(
            times.num_times <= self.num_iterations for times in (self.wall, *self.phases.values()))

    def _phase(self, phase: str) -> TimeHistogram:
        times = self.phases.get(phase)
        if times is None:
            times = self.phases[phase] = TimeHistogram()
        return times


class Window(msgspec.Struct, omit_defaults=True):
    """Interval of a program, and its iterations; memory at its end, None if not known."""

    start_ns: Time
    end_ns: Time
    train: ModeTimes = msgspec.field(default_factory=ModeTimes)
    infer: ModeTimes = msgspec.field(default_factory=ModeTimes)
    rss_bytes: Count | None = None
    allocated_bytes: Count | None = None

    def of(self, training: bool) -> ModeTimes:
        """Return the times of a mode."""
        return self.train if training else self.infer

    @property
    def is_valid(self) -> bool:
        """Whether the window can have been written by charact."""
        return self.start_ns <= self.end_ns and self.train.is_valid and self.infer.is_valid

    @property
    def num_iterations(self) -> int:
        """Number of iterations of both modes."""
        return self.train.num_iterations + self.infer.num_iterations

    def extend(self, later: "Window") -> None:
        """Merge the next window into this one."""
        self.end_ns, self.rss_bytes, self.allocated_bytes = later.end_ns, later.rss_bytes, later.allocated_bytes
        self.train.merge(later.train)
        self.infer.merge(later.infer)
