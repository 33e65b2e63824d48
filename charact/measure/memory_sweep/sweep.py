"""Running cases for their memory alone: predicted, then measured where that can be."""

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
from charact.measure.memory_estimate.estimator import Prediction, Predictor
from charact.measure.memory_estimate.target_devices import Target
from charact.measure.memory_sweep.integer_search import largest_fitting, smallest_taken
from charact.measure.memory_sweep.measured_case import MemoryCase
from charact.record.reader import Rows
from charact.record.writer import RunWriter

Entry = dict[str, Any]
AXES = ("batch_size", "input_size")
_SHORTAGE = ("requested_bytes", "free_bytes", "limit_bytes", "phase", "composition", "composition_source")


@dataclass(frozen=True)
class MemoryPlan:
    """How cases are looked at."""

    target: Target
    """The device that they are for."""
    predict: bool = True
    measure: bool = True
    """Whether they are run, on the device that the case names; not where they are predicted not to fit."""
    limit_bytes: int | None = None
    """What they may take of it then; None leaves them what is free."""

    def begin(self) -> None:
        """Prepare the process for a limit, before anything else has left holes in its heap."""
        if self.measure and self.limit_bytes is not None and self.target.kind == "cpu":
            give_back_to_system()


def run_memory_cases(cases: Sequence[Case], plan: MemoryPlan, writer: RunWriter, observer: Observer,
                     interrupt: Interrupt) -> None:
    """Predict and measure each case and flush it to the record; the sweep goes on after a case that fails.

    A signal ends it after the cases that had finished: `interrupt.signal` tells which.
    """
    plan.begin()
    predictor = Predictor(plan.target)
    for number, case in enumerate(cases, start=1):
        observer.case_started(case.id, number, len(cases))
        run = MemoryRun(case, plan, predictor, observer)
        run.run(interrupt)
        writer.add_case(run.entry, run.tables)
        observer.case_ended(run.entry["status"], run.entry["reason"])
        if interrupt.signal is not None:
            return


class MemoryRun:
    """One case: its prediction and measurement, and what they leave in the record.

    Args:
        case: the case.
        plan: what to do with it.
        predictor: predicts for the plan's target.
        observer: is told of passes.
        prediction: its prediction, where that is there already; the case is then run though it may not fit.
    """

    def __init__(self, case: Case, plan: MemoryPlan, predictor: Predictor, observer: Observer,
                 prediction: Prediction | None = None) -> None:
        self._case, self._plan, self._predictor, self._observer = case, plan, predictor, observer
        self._prediction, self._forced = prediction, prediction is not None
        self._passes: dict[str, dict[str, Any]] = {}
        self.tables: dict[str, Rows] = {"memory": []}
        here = plan.target.name if not plan.measure and case.device.type == "cuda" else None
        self.entry: Entry = case_entry(case, here) | {"passes": self._passes}

    def run(self, interrupt: Interrupt) -> None:
        """Predict and measure it; a failure ends up in the entry."""
        try:
            with interrupt.allowed():
                self._run()
        except KeyboardInterrupt:
            self._fail(interrupt.ending())
        except Exception as error:
            self._fail(outcome_of(error))
        release_memory(self._case.device)

    def _run(self) -> None:
        if self._plan.predict:
            self._predict()
        fits = None if self._prediction is None else self._prediction.facts["fits"]
        if self._plan.measure and (fits is not False or self._forced):
            self._measure()
            return
        why = "predicted not to fit" if self._plan.measure else "predicted only"
        self._passes["memory"] = {"status": "skipped", "reason": why}
        if fits is False:
            assert self._prediction is not None
            self.entry |= predicted_not_to_fit(self._prediction)
            self.entry["out_of_memory"] = self._told({"limit_bytes": self._plan.target.memory_bytes})

    def _predict(self) -> None:
        self._observer.pass_started("prediction")
        try:
            self._prediction = self._prediction or self._predictor.predict(self._case)
        except Exception as error:
            if not self._plan.measure:
                raise
            # A measurement does without: why there is no prediction is told.
            self._passes["prediction"] = {"status": "failed", "reason": reason(error)}
            return
        self._passes["prediction"] = {"status": "ok", "reason": None, **self._prediction.facts}
        self.tables["memory"] += self._prediction.rows

    def _measure(self) -> None:
        self._observer.pass_started("memory")
        measured, error = MemoryCase(self._case, self._plan.limit_bytes), None
        try:
            rows, facts = measured.measure()
        except Exception as caught:
            error = without_frames(caught)
        if error is not None:
            if measured.shortage is not None:
                self.entry["out_of_memory"] = self._told(measured.shortage)
            raise error
        self.tables["memory"] += rows
        self._passes["memory"] = {"status": "ok", "reason": None, **facts}
        self.entry |= measured.description

    def _told(self, shortage: dict[str, Any]) -> dict[str, Any]:
        """A shortage with what was held, by prediction where it was not seen, and with what would fit."""
        told: dict[str, Any] = dict.fromkeys(_SHORTAGE) | shortage
        if told["composition"] is not None:
            told["composition_source"] = "measured"
        elif self._prediction is not None:
            peak = [row for row in self._prediction.rows if row["kind"] == "peak"]
            composition: dict[str, float] = defaultdict(float)
            for row in peak:
                composition[row["category"]] += row["bytes"]
            told |= {"composition": dict(composition), "composition_source": "predicted",
                     "phase": told["phase"] or peak[0]["phase"]}
        return told | self._what_fits(told["limit_bytes"])

    def _what_fits(self, limit_bytes: int | None) -> dict[str, Any]:
        """The largest batch size and the largest input size that would have fitted, all else as in the case."""
        fits: dict[str, int | None] = dict.fromkeys(AXES)
        if limit_bytes is None or self._forced:
            return {"fits": fits, "fits_reason": "the search tells" if self._forced else "the limit is not known"}
        self._observer.pass_started("fit")
        try:
            for axis in AXES:
                of, most = on_axis(self._case, axis), getattr(self._case, axis) - 1
                if (first := smallest(self._case, axis)) <= most:
                    does_fit = self._fits(of, limit_bytes)
                    first = smallest_taken(does_fit, first, most)
                    fits[axis] = largest_fitting(does_fit, first, first, most)
        except Exception as error:
            return {"fits": fits, "fits_reason": reason(error)}
        return {"fits": fits, "fits_reason": None}

    def _fits(self, of: Callable[[int], Case], limit_bytes: int) -> Callable[[int], bool]:
        return lambda value: self._predictor.predict(of(value)).needed_bytes <= limit_bytes

    def _fail(self, ending: dict[str, Any]) -> None:
        self.entry |= ending
        for name in ("prediction", "memory") if self._plan.predict else ("memory",):
            self._passes.setdefault(name, {"status": "skipped", "reason": ending["reason"]})
        self.tables["memory"] = [row for row in self.tables["memory"] if row["method"] == "predicted"]


def on_axis(case: Case, axis: str) -> Callable[[int], Case]:
    """The case with another batch or input size."""
    if axis == "batch_size":
        return lambda value: replace(case, batch_size=value)
    return lambda value: replace(case, input_size=value)


def smallest(case: Case, axis: str) -> int:
    """The smallest batch or input size that the case's workload takes."""
    return 1 if axis == "batch_size" else case.workload.smallest_input_size


def outcome_of(error: Exception) -> dict[str, Any]:
    """What an error changes in a case's entry; one that says what to do says so alone."""
    return {"status": "error", "reason": str(error)} if isinstance(error, UserError) else failure(error)


def reason(error: Exception) -> str:
    """Why there is no prediction, in one line."""
    return str(error) if isinstance(error, UserError) else one_line(error)


def without_frames(error: Exception) -> Exception:
    """An error that no longer holds what the functions held that it went through."""
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)


def predicted_not_to_fit(prediction: Prediction) -> dict[str, str]:
    """What that changes in a case's entry."""
    facts = prediction.facts
    return {"status": "oom", "reason": f"predicted to need {size(prediction.needed_bytes)} of the "
                                       f"{size(facts['device_memory_bytes'])} of {facts['device']}"}
