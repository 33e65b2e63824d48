"""Memory sweep: estimates the memory of cases, and measures it if possible."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from charact.core.errors import UserError
from charact.core.observer import Observer
from charact.execution.case import Case
from charact.execution.case_outcome import case_entry, failure, one_line, size
from charact.execution.interrupt import Interrupt
from charact.execution.memory_limit import give_back_to_system, release_memory
from charact.measure.memory_estimate.estimator import Estimator, MemoryEstimate
from charact.measure.memory_estimate.target_devices import Target
from charact.measure.memory_sweep.measured_case import MemoryCase
from charact.measure.memory_sweep.time_left import TimeLeft
from charact.record.manifest import Fits, OutOfMemory
from charact.record.manifest_passes import MemoryPass, PredictionPass
from charact.record.schema import NOT_SEARCHED, Rows
from charact.record.writer import RunWriter

AXES = ("batch_size", "input_size")


@dataclass(frozen=True)
class MemoryPlan:
    """Options of a memory sweep."""

    target: Target
    """Target device."""
    predict: bool = True
    """Whether to estimate the memory."""
    measure: bool = True
    """Whether to run cases on their own device, unless the estimate does not fit."""
    limit_bytes: int | None = None
    """Memory limit of the runs; None for no limit."""
    fit_command: str = "charact memory ... --fit"
    """Command that searches what would fit, recorded for cases that do not."""

    def begin(self) -> None:
        """Prepare the process for a limit, before anything else fragments its heap."""
        if self.measure and self.limit_bytes is not None and self.target.kind == "cpu":
            give_back_to_system()


def run_memory_cases(cases: Sequence[Case], plan: MemoryPlan, writer: RunWriter, observer: Observer,
                     interrupt: Interrupt) -> None:
    """Estimate and measure each case and flush it to the record; continue after a failed case.

    A signal ends the sweep after the finished cases and is in `interrupt.signal`.
    """
    plan.begin()
    estimator, left = Estimator(plan.target), TimeLeft(cases, observer)
    for number, case in enumerate(cases, start=1):
        left.case_starts()
        observer.case_started(case.id, number, len(cases))
        run = MemoryRun(case, plan, estimator, observer)
        run.run(interrupt)
        writer.add_case(run.entry, run.tables)
        observer.case_ended(run.entry.status, run.entry.reason)
        if interrupt.signal is not None:
            return


class MemoryRun:
    """One case: its estimate, its measurement, and its entry and rows of the record.

    With an existing `estimate` the case runs even if it does not fit.
    """

    def __init__(self, case: Case, plan: MemoryPlan, estimator: Estimator, observer: Observer,
                 estimate: MemoryEstimate | None = None) -> None:
        self._case, self._plan, self._estimator, self._observer = case, plan, estimator, observer
        self._estimate, self._forced = estimate, estimate is not None
        self.tables: dict[str, Rows] = {"memory": []}
        here = plan.target.name if not plan.measure and case.device.type == "cuda" else None
        self.entry = case_entry(case, here)
        self._passes = self.entry.passes

    def run(self, interrupt: Interrupt) -> None:
        """Estimate and measure the case; record a failure in the entry."""
        try:
            with interrupt.allowed():
                self._run()
        except KeyboardInterrupt:
            self._fail(interrupt.ending())
        except Exception as error:
            self._fail(outcome_of(error, self._case.precision))
        release_memory(self._case.device)

    def _run(self) -> None:
        if self._plan.predict:
            self._run_estimate()
        fits = None if self._estimate is None else self._estimate.facts.fits
        if self._plan.measure and (fits is not False or self._forced):
            self._measure()
            return
        why = "predicted not to fit" if self._plan.measure else "predicted only"
        self._passes["memory"] = MemoryPass("skipped", why)
        if fits is False:
            assert self._estimate is not None
            self.entry.update(**predicted_not_to_fit(self._estimate), out_of_memory=self._with_composition(
                OutOfMemory(limit_bytes=self._plan.target.memory_bytes)))

    def _run_estimate(self) -> None:
        self._observer.pass_started("prediction")
        try:
            self._estimate = self._estimate or self._estimator.estimate(self._case)
        except Exception as error:
            if not self._plan.measure:
                raise
            # The measurement does not need the estimate: record only the reason.
            self._passes["prediction"] = PredictionPass("failed", reason(error, self._case.precision))
            return
        self._passes["prediction"] = self._estimate.facts
        self.tables["memory"] += self._estimate.rows

    def _measure(self) -> None:
        self._observer.pass_started("memory")
        measured, error = MemoryCase(self._case, self._plan.limit_bytes), None
        try:
            rows, facts = measured.measure()
        except Exception as caught:
            error = without_frames(caught)
        if error is not None:
            if measured.shortage is not None:
                self.entry.out_of_memory = self._with_composition(measured.shortage)
            raise error
        self.tables["memory"] += rows
        self._passes["memory"] = facts
        self.entry.update(**measured.description)

    def _with_composition(self, shortage: OutOfMemory) -> OutOfMemory:
        if shortage.composition is not None:
            shortage.composition_source = "measured"
        elif self._estimate is not None:
            peak = [row for row in self._estimate.rows if row["kind"] == "peak"]
            composition: dict[str, float] = defaultdict(float)
            for row in peak:
                composition[row["category"]] += row["bytes"]
            shortage.update(composition=dict(composition), composition_source="predicted",
                            phase=shortage.phase or peak[0]["phase"])
        shortage.fits = Fits()
        shortage.fits_reason = "see the search" if self._forced else f"{NOT_SEARCHED}: {self._plan.fit_command}"
        return shortage

    def _fail(self, ending: dict[str, Any]) -> None:
        self.entry.update(**ending)
        for name in ("prediction", "memory") if self._plan.predict else ("memory",):
            if name not in self._passes:
                self._passes.end(name, "skipped", ending["reason"])
        self.tables["memory"] = [row for row in self.tables["memory"] if row["method"] == "predicted"]


def on_axis(case: Case, axis: str) -> Callable[[int], Case]:
    """Return a function that changes the case's batch size or input size."""
    if axis == "batch_size":
        return lambda value: replace(case, batch_size=value)
    return lambda value: replace(case, input_size=value)


def smallest(case: Case, axis: str) -> int:
    """Return the smallest batch size or input size of the case's workload."""
    return 1 if axis == "batch_size" else case.workload.smallest_input_size


def outcome_of(error: Exception, precision: str) -> dict[str, Any]:
    """Return status and reason of an error; a `UserError` is already a full message."""
    return {"status": "error", "reason": str(error)} if isinstance(error, UserError) else failure(error, precision)


def reason(error: Exception, precision: str) -> str:
    """Return an error as a one-line reason."""
    return str(error) if isinstance(error, UserError) else one_line(error, precision)


def without_frames(error: Exception) -> Exception:
    """Return an error without traceback and causes, which would keep tensors alive."""
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)


def predicted_not_to_fit(estimate: MemoryEstimate) -> dict[str, str]:
    """Return status and reason of a case whose estimate does not fit."""
    facts = estimate.facts
    return {"status": "oom", "reason": f"predicted to need {size(estimate.needed_bytes)} of the "
                                       f"{size(facts.device_memory_bytes or 0)} of {facts.device}"}
