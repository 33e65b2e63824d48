"""Memory sweep: estimates the memory of cases, and measures it if possible."""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from charact.core.observer import Observer
from charact.core.units import needed_text
from charact.execution.case import Case
from charact.execution.case_outcome import case_entry, one_line, size
from charact.execution.interrupt import Interrupt
from charact.execution.memory_limit import give_back_to_system
from charact.measure.case_loop import ending_of, run_each
from charact.measure.memory_estimate.estimator import Estimator, MemoryEstimate
from charact.measure.memory_estimate.target_devices import Target
from charact.measure.memory_sweep.measured_case import MemoryCase
from charact.record.manifest import CaseEntry, Fits, OutOfMemory
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
    """Estimate and measure each case and write it to the record; errors and signals: see `run_each`."""
    plan.begin()
    estimator, left = Estimator(plan.target), TimeLeft(cases, observer)

    def run(case: Case) -> list[tuple[CaseEntry, dict[str, Rows]]]:
        left.case_starts()
        return [MemoryRun(case, plan, estimator, observer).run(interrupt)]

    run_each(cases, run, writer, observer, interrupt)


class TimeLeft:
    """Reports the time left before each case.

    The first case of a model takes longer: its program is built, and its operators are not yet in a cache.
    """

    def __init__(self, cases: Sequence[Case], observer: Observer) -> None:
        # What cases have in common that share a program.
        families = [(id(case.workload), case.mode, case.precision, case.attention, case.data, case.accumulate,
                     case.parallel, case.num_ranks, case.lora_rank) for case in cases]
        self._are_first = [family not in families[:number] for number, family in enumerate(families)]
        self._observer = observer
        self._durations_s: list[float] = []
        self._started_s: float | None = None

    def case_starts(self) -> None:
        """Report the time left; the previous case has ended."""
        now_s = time.monotonic()
        if self._started_s is not None:
            self._durations_s.append(now_s - self._started_s)
            self._observer.time_left(self._left_s())
        self._started_s = now_s

    def _left_s(self) -> float:
        ended = list(zip(self._are_first, self._durations_s, strict=False))
        mean_s = {kind: [duration_s for is_first, duration_s in ended if is_first == kind] for kind in (True, False)}
        first_s, later_s = (fmean(mean_s[kind] or self._durations_s) for kind in (True, False))
        return sum(first_s if is_first else later_s for is_first in self._are_first[len(self._durations_s):])


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

    def run(self, interrupt: Interrupt) -> tuple[CaseEntry, dict[str, Rows]]:
        """Estimate and measure the case; return its entry and rows."""
        ending = ending_of(self._run, self._case.device, self._case.precision, interrupt, guarded=False)
        if ending is not None:
            self.entry.update(**ending)
            for name in ("prediction", "memory") if self._plan.predict else ("memory",):
                if name not in self._passes:
                    self._passes.end(name, "skipped", ending["reason"])
            self.tables["memory"] = [row for row in self.tables["memory"] if row["method"] == "predicted"]
        return self.entry, self.tables

    def _run(self) -> None:
        if self._plan.predict:
            self._run_estimate()
        estimate = self._estimate
        if self._plan.measure and (self._forced or estimate is None or estimate.facts.fits is not False):
            self._measure()
            return
        why = "predicted not to fit" if self._plan.measure else "predicted only"
        self._passes["memory"] = MemoryPass("skipped", why)
        if estimate is not None and estimate.facts.fits is False:
            facts = estimate.facts
            needed = needed_text(estimate.needed_bytes, estimate.peak_bytes, facts.context_high_bytes, size)
            self.entry.update(
                status="oom", reason=f"predicted to need {needed} of the "
                                     f"{size(facts.device_memory_bytes or 0)} of {facts.device}",
                out_of_memory=self._with_composition(OutOfMemory(limit_bytes=self._plan.target.memory_bytes)))

    def _run_estimate(self) -> None:
        self._observer.pass_started("prediction")
        try:
            self._estimate = self._estimate or self._estimator.estimate(self._case)
        except Exception as error:
            if not self._plan.measure:
                raise
            # The measurement does not need the estimate: record only the reason.
            self._passes["prediction"] = PredictionPass("failed", one_line(error, self._case.precision))
            return
        self._passes["prediction"] = self._estimate.facts
        self.tables["memory"] += self._estimate.rows

    def _measure(self) -> None:
        self._observer.pass_started("memory")
        measured, error = MemoryCase(self._case, self._plan.limit_bytes), None
        try:
            rows, facts = measured.measure()
        except Exception as caught:
            # Traceback and causes would keep tensors alive.
            caught.__context__ = caught.__cause__ = None
            error = caught.with_traceback(None)
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
