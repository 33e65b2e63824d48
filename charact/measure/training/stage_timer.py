"""Training stages: one pass over the batches, with time by phase, loss and metrics."""

import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from charact.core.statistics import mean_interval_frac
from charact.core.timeline import Iteration, total_s, with_rest
from charact.execution.batches import Batches
from charact.execution.loop import Loop, Step
from charact.measure.passes.phase_timer import phases_for
from charact.record.schema import Rows
from charact.workload.metrics import Metric


class DivergedError(Exception):
    """The loss is not finite."""


class Stage(NamedTuple):
    """Result of a pass over the batches: rows of the tables `stages` and `metrics`, and values by metric."""

    stage_rows: Rows
    metric_rows: Rows
    values: dict[str, float | None]
    compile_s: float | None
    """Time of compilation in seconds; None if the model is not compiled."""


def run_stage(name: str, epoch: int, loop: Loop, batches: Batches, seed: int, metrics: Sequence[Metric],
              on_iteration: Callable[[str, int, int], None]) -> Stage:
    """Train or validate on every batch once.

    Starting and stopping the loader counts as `data`; metrics, progress and the final synchronization as `other`.

    Raises:
        DivergedError: the loss is not finite.
    """
    loop.model.train(name == "training")
    iterate = loop.iteration if name == "training" else loop.validate
    clock, totals, compile_timer = StageClock(loop.case.device), _Totals(loop.case.device, metrics), _CompileTimer(loop)
    with clock.loading():
        loop.feed(batches.epoch(seed))
    for number in range(len(batches)):
        with clock.phases, compile_timer.iteration():
            step = iterate(clock.phases)
            totals.add(step, batches.size(number), f"in iteration {number + 1} of the {name} of epoch {epoch}")
        clock.read()
        on_iteration(name, number + 1, len(batches))
    del step
    with clock.loading():
        loop.close()
    values = totals.values(f"over the {name} of epoch {epoch}")
    clock.stop()
    return Stage(
        clock.rows(name, epoch, num_iterations=len(batches), num_samples=totals.num_samples,
                   interval_frac=mean_interval_frac(compile_timer.usual_s)),
        [{"stage": name, "number": epoch, "metric": metric, "value": value, "reason": reason}
         for metric, (value, reason) in values.items()],
        {metric: value for metric, (value, _) in values.items()}, compile_timer.seconds())


class StageClock:
    """Sums of a stage's phases, which add up to its wall time on the host's clock."""

    def __init__(self, device: torch.device) -> None:
        self.phases = phases_for(device)
        self.wall_s = 0.0
        """Time from the beginning to the end of the stage (s), once it has stopped."""
        self._device = device
        self._host_s: dict[str, float] = defaultdict(float)
        self._device_s: dict[str, float] = defaultdict(float)
        self._begun = time.perf_counter()

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """Count the time inside, between iterations, as `data`."""
        begun = time.perf_counter()
        yield
        self._host_s["data"] += time.perf_counter() - begun

    def read(self, *, wait: bool = False) -> list[Iteration]:
        """Add the iterations that have finished, or all, and return them."""
        finished = self.phases.take(wait=wait)
        for of_all, of_these in zip((self._host_s, self._device_s), total_s(finished), strict=True):
            for phase, spent_s in of_these.items():
                of_all[phase] += spent_s
        return finished

    def stop(self) -> list[Iteration]:
        """Wait for the device, and end the stage; return the iterations that were not read yet."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        last = self.read(wait=True)
        self.wall_s = time.perf_counter() - self._begun
        return last

    def rows(self, stage: str, number: int, **counts: Any) -> Rows:
        """Return rows of the table `stages`; the time outside of all phases is `other`."""
        return [{"stage": stage, "number": number, "phase": phase, "host_s": host_s,
                 "device_s": self._device_s.get(phase)} | counts
                for phase, host_s in with_rest(self._host_s, self.wall_s).items()]


class _CompileTimer:
    """Compilation time: the difference between iterations that compiled and the median of the others."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._compiling_s: list[float] = []
        self.usual_s: list[float] = []
        """Times of the iterations that did not compile (s)."""

    @contextlib.contextmanager
    def iteration(self) -> Iterator[None]:
        num_before, begun = self._loop.num_compiled, time.perf_counter()
        yield
        compiled = self._loop.num_compiled > num_before
        (self._compiling_s if compiled else self.usual_s).append(time.perf_counter() - begun)

    def seconds(self) -> float | None:
        """Return the sum in seconds; None if the model is not compiled."""
        usual_s = median(self.usual_s) if self.usual_s else 0.0
        return sum(max(0.0, wall_s - usual_s) for wall_s in self._compiling_s) if self._loop.case.compiled else None


class _Totals:
    """Sums of losses, weighted by samples, and of metrics, without synchronization on CUDA."""

    def __init__(self, device: torch.device, metrics: Sequence[Metric]) -> None:
        self.num_samples = 0
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self._metrics = metrics
        self._available = [metric for metric in metrics if metric.unavailable() is None]
        self._may_wait = device.type == "cpu"

    @torch.no_grad()
    def add(self, step: Step, num_samples: int, where: str) -> None:
        """Add an iteration; on a CPU its loss must be finite."""
        assert step.loss is not None
        loss: Tensor = step.loss.detach()
        if self._may_wait:
            _check_finite(float(loss), where)
        self.num_samples += num_samples
        self._loss_sum = self._loss_sum + loss.double() * num_samples
        for metric in self._available:
            metric.update(step.outputs, step.batch)

    def values(self, where: str) -> dict[str, tuple[float | None, str | None]]:
        """Return the mean loss per sample, which must be finite, and each metric's value or the reason for none."""
        loss = float(self._loss_sum) / self.num_samples
        _check_finite(loss, where)
        return {"loss": (loss, None)} | {metric.name: value_of(metric) for metric in self._metrics}


def _check_finite(loss: float, where: str) -> None:
    if not math.isfinite(loss):
        raise DivergedError(f"the loss is {loss} {where}")


def value_of(metric: Metric) -> tuple[float | None, str | None]:
    """Return a metric's value, or the reason for none."""
    if reason := metric.unavailable():
        return None, reason
    value = metric.value()
    if value is None:
        return None, "no samples to compute it from"
    return (value, None) if math.isfinite(value) else (None, f"it is {value}")
