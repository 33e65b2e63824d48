"""Search of the largest batch size or input size that fits a device, by estimates, verified by runs."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from charact.core.errors import UserError
from charact.core.observer import Observer
from charact.execution.case import Case
from charact.execution.case_outcome import case_entry
from charact.execution.interrupt import Interrupt
from charact.measure.case_loop import ending_of, run_each
from charact.measure.memory_estimate.estimator import Estimator, MemoryEstimate
from charact.measure.memory_estimate.fake_program import CannotEstimate
from charact.measure.memory_sweep.integer_search import largest_fitting, smallest_taken
from charact.measure.memory_sweep.sweep import MemoryPlan, MemoryRun, TimeLeft
from charact.record.manifest import CaseEntry
from charact.record.manifest_passes import FitPass
from charact.record.schema import GENERATING_MODES, Rows
from charact.record.writer import RunWriter

_MOST_BATCH, _MOST_INPUT = 65_536, 16_384
"""Upper limits of a search. The second is for networks without a longest input: some loop over it in Python."""
_MOST_PROMPT = 2**20
"""The same for prompts of such networks, which they read at once."""
_FIRST_BATCH = 2
_LARGEST_FIRST = 512
"""Largest start value of a search, for networks that do not support smaller values."""


@dataclass(frozen=True)
class FitPlan:
    """Options of a search."""

    axis: str
    """`batch_size` or `input_size`."""
    memory: MemoryPlan
    """Target to fit; `measure` also runs the value found and the next one under its limit."""


def run_fits(cases: Sequence[Case], plan: FitPlan, writer: RunWriter, observer: Observer,
             interrupt: Interrupt) -> None:
    """Search the largest value that fits for each case; write the result as a case with a row of `fits`.

    With verification, the next larger value becomes a separate case. Errors and signals: see `run_each`.
    """
    plan.memory.begin()
    estimator, left = Estimator(plan.memory.target), TimeLeft(cases, observer)

    def run(case: Case) -> list[tuple[CaseEntry, dict[str, Rows]]]:
        left.case_starts()
        return _Search(case, plan, estimator, observer).run(interrupt)

    run_each(cases, run, writer, observer, interrupt)


class _Search:
    """One search, and its entries and rows of the record.

    Values are searched as multiples of a unit: 1, or the step of the workload's input sizes.
    """

    def __init__(self, case: Case, plan: FitPlan, estimator: Estimator, observer: Observer) -> None:
        self._case, self._plan, self._estimator, self._observer = case, plan, estimator, observer
        self._unit = 1 if plan.axis == "batch_size" else case.workload.input_size_step
        self._smallest = 1 if plan.axis == "batch_size" else case.workload.smallest_input_size // self._unit
        self._estimates: dict[int, MemoryEstimate] = {}
        self._refusals: dict[int, str] = {}
        self._largest: int | None = None
        """The largest value that fits, after the search."""

    def run(self, interrupt: Interrupt) -> list[tuple[CaseEntry, dict[str, Rows]]]:
        started = time.perf_counter()
        ending = ending_of(self._search, self._case.device, self._case.precision, interrupt, guarded=False)
        if ending is not None:
            entry = case_entry(self._case, self._plan.memory.target.name)
            entry.update(**ending)
            return [(entry, {})]
        duration_s = time.perf_counter() - started
        largest, following = self._largest, self._following
        runs = self._runs()
        for run in runs.values():
            run.run(interrupt)
        first = next(iter(runs.values()))
        if following is not None:
            ended_by = "memory"
        else:
            assert largest is not None
            ended_by = self._refusals.get(largest + 1, f"the limit of a search is {self._most * self._unit:,}")
        first.entry.passes["fit"] = FitPass("ok", ended_by=ended_by, num_predictions=len(self._estimates),
                                            duration_s=duration_s)
        first.tables["fits"] = [self._row(runs)]
        return [(run.entry, run.tables) for run in runs.values()]

    def _of(self, value: int) -> Case:
        return replace(self._case, batch_size=value) if self._plan.axis == "batch_size" else \
            replace(self._case, input_size=value * self._unit)

    def _search(self) -> None:
        most, start = self._most, self._start()
        if start is None or self._room(start) < 0:
            self._smallest = smallest_taken(self._room, self._smallest, _LARGEST_FIRST)
        start = start or self._smallest
        if start not in self._refusals:  # checks take no time, unlike estimates
            most = largest_fitting(lambda value: math.inf if self._is_allowed(value) else -math.inf, start, start, most
                                   ) or start
        is_side = self._plan.axis == "input_size" and self._case.workload.input_kind == "image"
        self._largest = largest_fitting(self._room, self._smallest, start, most, 2.0 if is_side else 1.0)
        if self._largest is None and self._smallest in self._refusals:
            raise UserError(self._refusals[self._smallest])

    @property
    def _most(self) -> int:
        """Return the upper limit of the search, which is never below the longest input of the network."""
        if self._plan.axis == "batch_size":
            return _MOST_BATCH
        most = _MOST_PROMPT if self._case.mode in GENERATING_MODES else _MOST_INPUT
        longest = self._case.workload.longest_input_size
        return max(most, 0 if longest is None else longest + 1) // self._unit  # the value after it says why it ends

    def _start(self) -> int | None:
        """Return a first value: two samples, which more networks support than one; None if that cannot be estimated."""
        start = _FIRST_BATCH if self._plan.axis == "batch_size" else self._smallest
        if not self._is_allowed(start):
            return None
        try:
            self._room(start)
        except Exception:  # a network may support a single sample only, or batches from a larger size on
            return None
        return start

    def _is_allowed(self, value: int) -> bool:
        if value in self._refusals:
            return False
        try:
            self._of(value).check(here=self._plan.memory.measure)
        except UserError as error:
            self._refusals[value] = str(error)
        return value not in self._refusals

    def _room(self, value: int) -> float:
        """Return the memory (bytes) that a value is estimated to leave; minus infinity if it is not allowed."""
        if not self._is_allowed(value):
            return -math.inf
        if value not in self._estimates:
            self._observer.pass_started(f"fit, {self._plan.axis.replace('_', ' ')} {value * self._unit}")
            try:
                self._estimates[value] = self._estimator.estimate(self._of(value))
            except CannotEstimate:
                raise
            except UserError as error:  # a user's model has its limits only once it is built
                self._refusals[value] = str(error)
                return -math.inf
        limit_bytes = self._plan.memory.target.memory_bytes
        assert limit_bytes is not None
        return limit_bytes - self._estimates[value].needed_bytes

    @property
    def _following(self) -> int | None:
        """Return the smallest value that does not fit; None if the search ended before it."""
        value = self._smallest if self._largest is None else self._largest + 1
        return value if value in self._estimates else None

    def _runs(self) -> dict[int, MemoryRun]:
        """Return the cases for the record by value: the largest or the smallest, and the next one to verify."""
        values, memory = [self._largest or self._smallest], self._plan.memory
        if self._largest is None:
            memory = replace(memory, measure=False)
        elif memory.measure and self._following is not None:
            values.append(self._following)
        return {value: MemoryRun(self._of(value), memory, self._estimator, self._observer, self._estimates[value])
                for value in values}

    def _row(self, runs: dict[int, MemoryRun]) -> dict[str, Any]:
        target, largest, following = self._plan.memory.target, self._largest, self._following
        assert target.memory_bytes is not None
        needed: dict[int | None, int] = {value: self._estimates[value].needed_bytes for value in (largest, following)
                                         if value is not None}
        verified: dict[int | None, str] = {
            value: run.entry.status for value, run in runs.items()
            if self._plan.memory.measure and largest is not None and run.entry.status in ("ok", "oom")}
        return {
            "searched": self._plan.axis, "device": target.name, "limit_bytes": target.memory_bytes,
            "value": None if largest is None else largest * self._unit,
            "needed_bytes": needed.get(largest),
            "margin_bytes": None if largest is None else target.memory_bytes - needed[largest],
            "next_value": None if following is None else following * self._unit,
            "next_needed_bytes": needed.get(following),
            "verified": verified.get(largest), "next_verified": verified.get(following),
        }
