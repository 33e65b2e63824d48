"""Timing pass: iterations with phase timers only. All reported times come from here."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Any

import msgspec
import torch

from charact.core.statistics import median_interval
from charact.core.timeline import Iteration, iteration_rows
from charact.execution.compilations import compilations
from charact.execution.loop import Loop
from charact.machine.core_use import CoreMeter
from charact.measure.passes.phase_timer import HostPhases, phases_for
from charact.measure.passes.token_counter import TokenCounter
from charact.measure.passes.warm_device import warm_device
from charact.record.manifest_passes import TimingPass
from charact.record.manifest_program import Compilations

MIN_ITERATIONS = 6  # the minimum for a 95 % interval of the median
STABLE_ITERATIONS = 3
STABLE_FRAC = 0.1
MAX_WARMUP_ITERATIONS = 10
WARMUP_TIME_FRAC = 0.4  # of the time limit

@dataclass(frozen=True)
class StopRule:
    """End of a measurement: at a target precision or at a limit.

    At least `min_iterations` are measured, or 6 if they take too long.
    """

    precision_target_frac: float = 0.02
    max_iterations: int = 100
    max_seconds: float = 15.0
    min_iterations: int = MIN_ITERATIONS


@dataclass(frozen=True)
class Timing:
    """Result of the timing pass: rows of the table `iterations`, wall times and facts."""

    rows: list[dict[str, Any]]
    wall_s: list[float]
    facts: TimingPass


def timing_pass(loop: Loop, rule: StopRule, on_iteration: Callable[[int, float], None]) -> Timing:
    """Warm up until iterations take similar time and a GPU's clock is steady, then measure until the rule is met.

    `on_iteration` is called between iterations, outside of the measurement, with the number of iterations so far and
    their median (s). The rule uses the device's wall time on CUDA and the host's on a CPU. At least 6 iterations are
    measured, unless `max_iterations` is smaller. For a compiled model, the fact `compile_s` is the difference between
    the first iteration and the median one, and `compilations` counts them, warm-up included. The fact `core_use` says
    how much of the cores this and other programs used, see `charact.machine.core_use`.

    *Error*: the interval assumes independent iterations; clock changes and other load shift them together.
    """
    begun, core_use = time.perf_counter(), CoreMeter()
    phases = phases_for(loop.case.device)

    def iterate() -> list[float]:
        with phases:
            loop.iteration(phases)
        return [iteration.wall_s for iteration in phases.take(wait=True)]

    warmup_ended_by, warmup_s = warm_up(iterate, rule)
    num_more = warm_device(loop.case.device, lambda: loop.iteration(lambda _: nullcontext()))
    loop.place(0.0)
    measured: list[Iteration] = []
    wall_s: list[float] = []
    num_started, tokens = 0, TokenCounter(loop.case)
    while (reason := ended_by(wall_s, num_started, rule, time.perf_counter() - begun)) is None:
        with phases:
            indices = tokens.indices(loop.iteration(phases))
        tokens.add(indices)
        num_started += 1
        measured += phases.take()
        wall_s = [iteration.wall_s for iteration in measured]
        if wall_s:
            on_iteration(len(wall_s), median(wall_s))
    measured += phases.take(wait=True)
    wall_s = [iteration.wall_s for iteration in measured]
    return Timing(iteration_rows(measured), wall_s, TimingPass(
        "ok", num_warmup_iterations=len(warmup_s) + num_more, warmup_ended_by=warmup_ended_by,
        num_iterations=len(measured), ended_by=reason, precision_target_frac=rule.precision_target_frac,
        interval_frac=spread_frac(wall_s), median_s=median(wall_s),
        compile_s=max(0.0, warmup_s[0] - median(wall_s)) if loop.case.compiled else None,
        compilations=msgspec.convert(compilations(), Compilations) if loop.case.compiled else None,
        core_use=core_use.facts(), **tokens.facts()))


def warm_up(iterate: Callable[[], list[float]], rule: StopRule) -> tuple[str, list[float]]:
    """Iterate until the last few iterations take similar time; return the reason of the end and all wall times in s.

    `iterate` runs an iteration, and returns the wall times (s) that have become available.
    """
    begun = time.perf_counter()
    wall_s: list[float] = []
    while len(wall_s) < MAX_WARMUP_ITERATIONS:
        wall_s += iterate()
        last = wall_s[-STABLE_ITERATIONS:]
        if len(wall_s) > STABLE_ITERATIONS and max(last) <= (1 + STABLE_FRAC) * min(last):
            return "stable", wall_s
        if len(wall_s) >= 2 and time.perf_counter() - begun > WARMUP_TIME_FRAC * rule.max_seconds:
            return "max_seconds", wall_s
    return "max_iterations", wall_s


def ended_by(wall_s: list[float], num_started: int, rule: StopRule, spent_s: float) -> str | None:
    """Return which part of the rule is met; None to continue."""
    if num_started >= rule.max_iterations:
        return "max_iterations"
    if len(wall_s) < MIN_ITERATIONS:
        return None
    spread = spread_frac(wall_s)
    if len(wall_s) >= rule.min_iterations and spread is not None and spread <= rule.precision_target_frac:
        return "precision"
    return "max_seconds" if spent_s >= rule.max_seconds else None


def spread_frac(wall_s: list[float]) -> float | None:
    """Return half the width of the median's 95 % interval as a share of the median; null below 6 iterations."""
    interval = median_interval(wall_s)
    return None if interval is None else (interval[1] - interval[0]) / 2 / median(wall_s)


class CallTimer:
    """Times calls by the host's clock, or by a GPU's events, which are read when the GPU has passed them."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.work, self.device = work, torch.device("cpu")
        self._phases = HostPhases()

    def use(self, device: torch.device) -> None:
        """Use the clock of a device."""
        self.device, self._phases = device, phases_for(device)

    def call(self, *, wait: bool = False) -> list[float]:
        """Call the function; return the times (s) of calls that have become available.

        Without `wait` the host does not wait for the device, but is at most one call ahead of it.
        """
        with self._phases:
            self.work()
        if not wait:
            self._phases.keep_up()
        return self.available(wait=wait)

    def available(self, *, wait: bool) -> list[float]:
        """Return the times (s) of the calls that the device has finished, or of all."""
        return [iteration.wall_s for iteration in self._phases.take(wait=wait)]
