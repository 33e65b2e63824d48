"""A case of a watched program, with the facts that findings need."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import pandas as pd

from charact.analysis.common.script_attribution import is_watched
from charact.analysis.findings._finding import Basis, FreedMemory, Place, Saving
from charact.analysis.findings._series import SlowGroup, slow_groups
from charact.analysis.profile.breakdown import operator_times, phase_breakdown
from charact.analysis.profile.core_use import Disturbance, disturbance
from charact.core.units import quantity, share
from charact.record.manifest import CaseEntry
from charact.record.manifest_passes import Frame, HeldData, InspectionPass
from charact.record.manifest_program import ProgramFacts, ProgramSettings, Threads
from charact.record.reader import Run
from charact.record.schema import PHASES, SAMPLED_PHASES

LEAST_FRAC = 0.03
"""Minimum share of the loop's time that a reported cause takes."""
_MANY_SAMPLES = 5
"""Minimum number of samples of a line that a finding names..."""
_LARGE_FRAC, _FEW_SAMPLES = 0.4, 3
"""... and of a line with such a share of the phase's samples."""
_SLOW_SAMPLES_FRAC = 0.3
"""Minimum share of the samples in slow iterations of a line that explains them."""
_LEAST_FREED_BYTES, _LEAST_FREED_FRAC = 32 * 2**20, 0.1
"""Minimum freed memory that is reported, in bytes and as a share of the process's largest memory."""


@final
@dataclass(frozen=True)
class SampledLine:
    """A source line that the program ran when it was sampled, in one phase."""

    place: Place
    function: str
    library: str | None
    """Library functions that the line called, as text."""
    num_samples: int
    share_frac: float
    """Share of the phase's samples."""
    waiting_frac: float | None
    """Share of the line's time in which the main thread used no processor time; None if not known."""
    in_loop: bool
    """Whether the line is in a loop of its function."""

    @property
    def waits(self) -> bool:
        """Whether the main thread uses no processor time for most of the line's time."""
        return (self.waiting_frac or 0.0) > 0.5


@dataclass(frozen=True)
class WatchedCase:
    """A case whose iterations were timed, and its program.

    Phases are those of a typical iteration: slow iterations are left out, since they have findings of their own.
    """

    run: Run
    entry: CaseEntry

    @property
    def name(self) -> str:
        """Name of the case."""
        return self.entry.case

    @cached_property
    def iteration_s(self) -> float:
        """Time (s) of a typical iteration: the sum of its phases."""
        return sum(self.phase_s.values())

    @property
    def trains(self) -> bool:
        """Whether the case is a training."""
        return self.entry.mode == "train"

    @cached_property
    def trainings(self) -> set[str]:
        """Names of the program's cases that are trainings."""
        return {case.name for case in watched_cases(self.run) if case.trains}

    @property
    def on_cpu(self) -> bool:
        """Whether the case computes on the CPU."""
        return self.entry.device == "cpu"

    @cached_property
    def disturbance(self) -> Disturbance | None:
        """What other programs took of the cores; None if it is little."""
        return disturbance(self.run, self.name)

    @cached_property
    def program(self) -> ProgramFacts:
        """Facts of the whole program, which are recorded with its first case."""
        facts = (entry.passes.timing.program for entry in self.run.entries)
        return next(filter(None, facts), ProgramFacts())

    @cached_property
    def settings(self) -> ProgramSettings:
        """Settings read from the live program; empty if they were not recorded."""
        return self.program.settings or ProgramSettings()

    @property
    def num_threads(self) -> int | None:
        """PyTorch's threads inside an operator; None if not recorded."""
        return (self.settings.threads or Threads()).intra_op

    @property
    def num_cores(self) -> int | None:
        """Cores that the program may use; None if not recorded."""
        return (self.settings.threads or Threads()).num_usable_cores

    @cached_property
    def inspection(self) -> InspectionPass:
        """Facts of the pass `inspection`; empty without it."""
        facts = self.entry.passes.inspection
        return facts if facts.status == "ok" else InspectionPass()

    @cached_property
    def iterations(self) -> pd.DataFrame:
        """Rows of `program_iterations` in order, without the iterations of passes.

        `position` is the index among all iterations of the case, including those of passes.
        """
        rows = self.run.program_iterations
        rows = rows[rows["case"] == self.name].sort_values("index")
        rows = rows.assign(position=range(len(rows)))
        return rows[rows["kind"] != "pass"].reset_index(drop=True)

    @cached_property
    def num_iterations(self) -> int:
        """Number of the case's iterations in the whole program, including those of passes and in windows."""
        rows = self.run.program_iterations
        return int((rows["case"] == self.name).sum()) + (self.entry.passes.timing.num_window_iterations or 0)

    @cached_property
    def windows(self) -> pd.DataFrame:
        """Rows of `windows` of whole iterations, in order, with `num_before`, the iterations in earlier windows.

        Of a program that ended before its event log was full, there are none.
        """
        rows = self.run.windows
        rows = rows[(rows["case"] == self.name) & rows["phase"].isna()].sort_values("window", ignore_index=True)
        return rows.assign(num_before=rows["num_iterations"].cumsum() - rows["num_iterations"])

    @cached_property
    def typical_s(self) -> float:
        """Median time (s) of an iteration."""
        return float(self.iterations["wall_s"].median())

    @cached_property
    def program_s(self) -> float:
        """Time (s) of the whole program without charact's own; the time of all iterations if its end is not known."""
        in_windows_s = sum(entry.passes.timing.window_s or 0.0 for entry in self.run.entries)
        return float(self.program.duration_s or self.run.program_iterations["wall_s"].sum() + in_windows_s)

    @cached_property
    def loop_s(self) -> float:
        """Time (s) from the program's first iteration to its last one."""
        return self.program_s - (self.program.before_s or 0.0) - (self.program.after_s or 0.0)

    @cached_property
    def slow_groups(self) -> dict[str, SlowGroup]:
        """Groups of slow iterations by reason, see `slow_groups`."""
        return slow_groups(self.iterations)

    @cached_property
    def phase_s(self) -> dict[str, float]:
        """Time (s) of each phase of a typical iteration; 0 for phases that it lacks."""
        rows = phase_breakdown(self.run)
        rows = rows[rows["case"] == self.name]
        times = dict(zip(rows["phase"], rows["time_s"], strict=True))
        return {phase: times.get(phase, 0.0) for phase in PHASES}

    @cached_property
    def operators(self) -> pd.DataFrame:
        """Rows of `operators`; time_s is scaled from the profiled to the typical iteration."""
        rows = operator_times(self.run)
        rows = rows[rows["case"] == self.name].copy()
        scale = {phase: min(self.phase_s.get(phase, 0.0) / profiled_s, 1.0)
                 for phase, profiled_s in self.entry.passes.operators.phase_s.items() if profiled_s}
        rows["time_s"] *= rows["phase"].map(scale).fillna(1.0).astype(float)
        return rows

    def time_s(self, *phases: str) -> float:
        """Return the time (s) that phases take together of a typical iteration."""
        return sum(self.phase_s[phase] for phase in phases)

    def of_iteration(self, time_s: float) -> str:
        """Return a time as a share of the typical iteration, as text."""
        return f"{share(time_s / (self.iteration_s or math.inf))} of a typical iteration"

    def takes(self, time_s: float) -> str:
        """Return a time and its share of the typical iteration, as text."""
        return f"{quantity(time_s, 's')}, {self.of_iteration(time_s)}"

    def saving(self, low_s: float, high_s: float, basis: Basis = "measured share") -> Saving | None:
        """Return the saving of a remedy that saves `low_s` to `high_s` of each iteration; None if it is negligible."""
        return self.saving_in_all(low_s * self.num_iterations, high_s * self.num_iterations, basis)

    def saving_in_all(self, low_s: float, high_s: float, basis: Basis = "measured share") -> Saving | None:
        """Return the saving of a remedy that saves `low_s` to `high_s` of the program; None if it is negligible."""
        if not math.isfinite(high_s) or high_s < LEAST_FRAC * self.loop_s:
            return None
        return Saving(max(low_s, 0.0), high_s, basis)

    def freed_memory(self, data: HeldData, freed_frac: float) -> FreedMemory | None:
        """Return the memory of a remedy that frees a share of held data; None if it is negligible."""
        resident_bytes = float(self.iterations["rss_bytes"].max())
        freed_bytes = data.bytes * freed_frac
        if not freed_bytes >= max(_LEAST_FREED_BYTES, _LEAST_FREED_FRAC * resident_bytes):
            return None
        return FreedMemory(freed_bytes, min(freed_bytes / resident_bytes, 1.0))

    def slow_line(self, group: SlowGroup) -> SampledLine | None:
        """Return the line with most samples in slow iterations; None if it cannot explain the group."""
        line = next(iter(self.lines("slow")), None)
        if line is None or line.share_frac < _SLOW_SAMPLES_FRAC or group.phase in ("backward", "update"):
            return None
        return line

    def lines(self, phase: str) -> list[SampledLine]:
        """Return the lines of one of `SAMPLED_PHASES` with enough samples: most samples first, without imports."""
        return [line for line in self.all_lines(phase) if is_enough([line])]

    def all_lines(self, phase: str) -> list[SampledLine]:
        """Return the lines of one of `SAMPLED_PHASES`, also those with few samples, like `lines`."""
        if phase not in SAMPLED_PHASES:
            return []
        num_samples, frames = (getattr(self.entry.passes.frames, name) for name in SAMPLED_PHASES[phase])
        by_line: dict[tuple[str, str], list[Frame]] = {}
        for frame in frames:
            if "importing " not in (frame.library or "") and frame.place.rpartition(":")[2].isdecimal():
                by_line.setdefault((frame.place, frame.function), []).append(frame)
        return sorted((_line(group, num_samples) for group in by_line.values()), key=lambda line: -line.num_samples)


def is_enough(lines: Sequence[SampledLine]) -> bool:
    """Return whether lines have together so many samples that a finding names them."""
    num_samples, share_frac = sum(line.num_samples for line in lines), sum(line.share_frac for line in lines)
    return num_samples >= _MANY_SAMPLES or (share_frac >= _LARGE_FRAC and num_samples >= _FEW_SAMPLES)


def _line(frames: list[Frame], num_samples: int) -> SampledLine:
    first, total = frames[0], sum(frame.num_samples for frame in frames)
    waits = [(frame.waiting_frac, frame.num_samples) for frame in frames if frame.waiting_frac is not None]
    waiting_frac = sum(frac * count for frac, count in waits) / sum(count for _, count in waits) if waits else None
    libraries = dict.fromkeys(frame.library for frame in frames if frame.library)
    file, _, line = first.place.rpartition(":")
    return SampledLine(Place(file, int(line), first.text), first.function, ", ".join(list(libraries)[:2]) or None,
                       total, total / num_samples, waiting_frac, bool(first.in_loop))


def layer_of(row: "pd.Series[Any]") -> str | None:
    """Return the layer of a row of `operators`; None outside of layers."""
    return row["layer"] if isinstance(row["layer"], str) else None


def watched_cases(run: Run) -> list[WatchedCase]:
    """Return the cases of a watched program whose iterations were recorded; none for other runs."""
    recorded = set(run.program_iterations["case"]) if is_watched(run) else set()
    return [WatchedCase(run, entry) for entry in run.entries if entry.case in recorded]
