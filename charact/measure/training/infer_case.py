"""Inference cases: load the weights from disk, cold and warm, then run inference on a whole split."""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from charact.core.observer import Observer
from charact.core.statistics import mean_interval_frac
from charact.core.timeline import Iteration, iteration_rows
from charact.execution.batches import Batches
from charact.execution.case import Case
from charact.execution.case_outcome import case_entry
from charact.execution.interrupt import Interrupt
from charact.execution.loop import Loop, placed
from charact.measure.case_loop import ending_of, run_each
from charact.measure.training.stage_timer import StageClock, value_of
from charact.measure.training.weight_files import drop_cached, place_weights, read_weights, save_weights
from charact.record.in_progress import RANDOM_WEIGHTS
from charact.record.manifest import CaseEntry
from charact.record.manifest_passes import InferencePass
from charact.record.schema import LOAD_PHASES, Rows
from charact.record.writer import RunWriter
from charact.workload.metrics import Metric


@dataclass(frozen=True)
class InferencePlan:
    """Weights to load, number of loads and number of batches."""

    weights: Path | None = None
    """File of the weights; None saves and loads random ones."""
    num_warm_loads: int = 5
    max_batches: int | None = None
    """Maximum number of batches; None for the whole split."""


def infer_cases(cases: Sequence[Case], plan: InferencePlan, writer: RunWriter, observer: Observer,
                interrupt: Interrupt) -> None:
    """Run each inference case and write it to the record; errors and signals: see `run_each`."""
    run_each(cases, lambda case: [_InferenceRun(case, plan, writer.directory, observer).run(interrupt)],
             writer, observer, interrupt)


class _InferenceRun:
    """One case: its loads, its inference, and their results: a manifest entry and table rows."""

    def __init__(self, case: Case, plan: InferencePlan, folder: Path, observer: Observer) -> None:
        self._case, self._plan, self._folder, self._observer = case, plan, folder, observer
        self._tables: dict[str, Rows] = {"stages": []}
        self._entry = case_entry(case)
        self._facts = self._entry.passes["inference"] = InferencePass("ok")

    def run(self, interrupt: Interrupt) -> tuple[CaseEntry, dict[str, Rows]]:
        ending = ending_of(self._measure, self._case.device, self._case.precision, interrupt)
        if ending is not None:
            self._entry.update(**ending)
            self._facts.update(status="skipped", reason=ending["reason"])
            self._tables.clear()
        return self._entry, self._tables

    def _measure(self) -> None:
        begun = perf_counter()
        case = self._case
        if case.device.type == "cuda":
            torch.cuda.set_device(case.device)
            torch.zeros(1, device=case.device)  # a load must not include the creation of the CUDA context
        if case.compiled:
            torch.compiler.reset()
        torch.manual_seed(case.data.seed)
        dataset = case.dataset()
        with self._weights_file(dataset) as path:
            self._facts.update(weights_bytes=path.stat().st_size, setup_s=perf_counter() - begun)
            self._observer.pass_started("load")
            model = self._load_repeatedly(path, dataset)
        self._entry.num_parameters = sum(parameter.numel() for parameter in model.parameters())
        loop = Loop(case, iter(()), dataset=dataset, model=model)
        try:
            self._run_inference(loop)
        finally:
            loop.close()

    @contextlib.contextmanager
    def _weights_file(self, dataset: Dataset[Any]) -> Iterator[Path]:
        """Yield the plan's file; without one, random weights in the record's directory."""
        if self._plan.weights is not None:
            self._facts.weights = str(self._plan.weights)
            yield self._plan.weights
            return
        self._facts.weights_reason = "random: --weights names none"
        path = self._folder / RANDOM_WEIGHTS
        try:
            save_weights(self._case.workload.model(dataset), path)
            yield path
        finally:
            path.unlink(missing_ok=True)

    def _load_repeatedly(self, path: Path, dataset: Dataset[Any]) -> nn.Module:
        """Load once with a cold page cache, then with a warm one; return the last model."""
        cold_reason = self._facts.cold_reason = drop_cached(path)
        model, durations = load(self._case, dataset, path)
        if cold_reason is None:
            self._add_load("load_cold", 1, durations)
        for number in range(1, self._plan.num_warm_loads + 1):
            del model
            model, durations = load(self._case, dataset, path)
            self._add_load("load_warm", number, durations)
        return model

    def _add_load(self, stage: str, number: int, durations: dict[str, float]) -> None:
        self._tables["stages"] += [
            {"stage": stage, "number": number, "phase": phase, "host_s": host_s, "device_s": None,
             "num_iterations": 0, "num_samples": 0}
            for phase, host_s in durations.items()
        ]

    def _run_inference(self, loop: Loop) -> None:
        case = self._case
        batches = Batches(case, loop.dataset, shuffle=False, whole=False)
        num_batches = min(len(batches), self._plan.max_batches or len(batches))
        num_samples = sum(map(batches.size, range(num_batches)))
        compiling_s = None
        if case.compiled:  # compile for every shape that occurs
            self._observer.pass_started("compilation")
            compiling_s = run_inference(loop, batches, num_batches, [], self._observer.iteration).clock.wall_s
        self._observer.pass_started("prediction")
        metrics = loop.workload.metrics(loop.dataset)
        available = [metric for metric in metrics if metric.unavailable() is None]
        prediction = run_inference(loop, batches, num_batches, available, self._observer.iteration)
        self._facts.update(
            num_samples=num_samples, num_batches=num_batches,
            compile_s=None if compiling_s is None else max(0.0, compiling_s - prediction.clock.wall_s))
        self._tables["iterations"] = iteration_rows(prediction.batches)
        self._tables["stages"] += prediction.stage_rows(num_samples)
        self._tables["metrics"] = [
            {"stage": "prediction", "number": 1, "metric": metric.name, "value": value, "reason": reason}
            for metric in metrics for value, reason in [value_of(metric)]
        ]


def load(case: Case, dataset: Dataset[Any], path: Path) -> tuple[nn.Module, dict[str, float]]:
    """Build the case's model with the weights of a file on its device; return it and each phase's time in seconds.

    Phases: build, the model with randomly initialized weights; read, the file into host memory; place, the weights into
    the model, and the model to the device in its precision and memory format, until the device has finished.
    """
    times_s = [perf_counter()]
    model = case.workload.model(dataset)
    times_s.append(perf_counter())
    state = read_weights(path)
    times_s.append(perf_counter())
    place_weights(model, state, path)
    model = placed(model, case)
    if case.device.type == "cuda":
        torch.cuda.synchronize(case.device)
    times_s.append(perf_counter())
    durations = [end - begin for begin, end in itertools.pairwise(times_s)]
    return model, dict(zip(LOAD_PHASES, durations, strict=True))


@dataclass(frozen=True)
class InferenceTimes:
    """Times of an inference on a data set: each batch by phase, and of the stage as a whole."""

    batches: list[Iteration]
    clock: StageClock

    def stage_rows(self, num_samples: int) -> Rows:
        """Return rows of the table `stages`; host time outside of the batches' phases is `other`."""
        return self.clock.rows("prediction", 1, num_iterations=len(self.batches), num_samples=num_samples,
                               interval_frac=mean_interval_frac([batch.wall_s for batch in self.batches]))


def run_inference(loop: Loop, batches: Batches, num_batches: int, metrics: Sequence[Metric],
                  on_iteration: Callable[[int, float], None]) -> InferenceTimes:
    """Run inference on batches in order, from the first batch to the end of the last one on the device.

    Starting the loader counts as `data` of the stage; metrics and the final synchronization count as its `other`. None
    of them is part of a batch's latency. The first batch includes the initialization of the device.
    """
    clock, begun = StageClock(loop.case.device), perf_counter()
    measured: list[Iteration] = []
    with clock.loading():
        loop.feed(batches.epoch(loop.case.data.seed))
    for number in range(1, num_batches + 1):
        with clock.phases:
            step = loop.iteration(clock.phases)
        for metric in metrics:
            metric.update(step.outputs, step.batch)
        del step  # so that only one batch is in memory while the next one is fetched
        measured += clock.read()
        on_iteration(number, (perf_counter() - begun) / number)
    return InferenceTimes(measured + clock.stop(), clock)
