"""Search of the largest batch size or input size that fits a device, by estimates, verified by runs."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from charact.core.errors import UserError
from charact.core.observer import Observer
from charact.execution.case import Case
from charact.execution.case_outcome import case_entry
from charact.execution.interrupt import Interrupt
from charact.measure.memory_estimate.estimator import Estimator, MemoryEstimate
from charact.measure.memory_sweep.integer_search import largest_fitting, smallest_taken
from charact.measure.memory_sweep.sweep import MemoryPlan, MemoryRun, on_axis, outcome_of, smallest
from charact.measure.memory_sweep.time_left import TimeLeft
from charact.record.manifest import CaseEntry
from charact.record.manifest_passes import FitPass
from charact.record.schema import Rows
from charact.record.writer import RunWriter

MOST = {"batch_size": 65_536, "input_size": 16_384}
"""Upper limits of a search."""
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
    """Search the largest value that fits for each case; flush the result as a case with a row of `fits`.

    With verification, the next larger value becomes a separate case.
    """
    plan.memory.begin()
    estimator, left = Estimator(plan.memory.target), TimeLeft(cases, observer)
    for number, case in enumerate(cases, start=1):
        left.case_starts()
        observer.case_started(case.id, number, len(cases))
        for entry, tables in _Search(case, plan, estimator, observer).run(interrupt):
            writer.add_case(entry, tables)
            observer.case_ended(entry.status, entry.reason)
        if interrupt.signal is not None:
            return


class _Search:
    """One search, and its entries and rows of the record."""

    def __init__(self, case: Case, plan: FitPlan, estimator: Estimator, observer: Observer) -> None:
        self._case, self._plan, self._estimator, self._observer = case, plan, estimator, observer
        self._of: Callable[[int], Case] = on_axis(case, plan.axis)
        self._smallest = smallest(case, plan.axis)
        self._estimates: dict[int, MemoryEstimate] = {}
        self._refusals: dict[int, str] = {}

    def run(self, interrupt: Interrupt) -> list[tuple[CaseEntry, dict[str, Rows]]]:
        started = time.perf_counter()
        try:
            with interrupt.allowed():
                found = self._search()
        except KeyboardInterrupt:
            return [(self._ended(interrupt.ending()), {})]
        except Exception as error:
            return [(self._ended(outcome_of(error, self._case.precision)), {})]
        duration_s = time.perf_counter() - started
        runs = self._runs(found)
        for run in runs.values():
            run.run(interrupt)
        first = next(iter(runs.values()))
        first.entry.passes["fit"] = FitPass("ok", ended_by=self._ended_by(found),
                                            num_predictions=len(self._estimates), duration_s=duration_s)
        first.tables["fits"] = [self._row(found, runs)]
        return [(run.entry, run.tables) for run in runs.values()]

    def _ended(self, ending: dict[str, Any]) -> CaseEntry:
        entry = case_entry(self._case, self._plan.memory.target.name)
        entry.update(**ending)
        return entry

    def _search(self) -> int | None:
        most = MOST[self._plan.axis]
        start = self._start()
        if start is None or self._room(start) < 0:
            self._smallest = smallest_taken(self._room, self._smallest, _LARGEST_FIRST)
        start = start or self._smallest
        if start not in self._refusals:  # checks take no time, unlike estimates
            most = largest_fitting(lambda value: math.inf if self._is_allowed(value) else -math.inf, start, start, most
                                   ) or start
        is_side = self._plan.axis == "input_size" and self._case.workload.input_kind == "image"
        found = largest_fitting(self._room, self._smallest, start, most, 2.0 if is_side else 1.0)
        if found is None and self._smallest in self._refusals:
            raise UserError(self._refusals[self._smallest])
        return found

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
            self._observer.pass_started(f"fit, {self._plan.axis.replace('_', ' ')} {value}")
            self._estimates[value] = self._estimator.estimate(self._of(value))
        limit_bytes = self._plan.memory.target.memory_bytes
        assert limit_bytes is not None
        return limit_bytes - self._estimates[value].needed_bytes

    def _next(self, found: int | None) -> int | None:
        """Return the smallest value that does not fit; None if the search ended before it."""
        value = self._smallest if found is None else found + 1
        return value if value in self._estimates else None

    def _ended_by(self, found: int | None) -> str:
        if self._next(found) is not None:
            return "memory"
        assert found is not None
        return self._refusals.get(found + 1, f"the search ends at {found}")

    def _runs(self, found: int | None) -> dict[int, MemoryRun]:
        """Return the cases for the record by value: the one found or the smallest, and the next one to verify."""
        memory = self._plan.memory
        if found is None:
            memory = replace(memory, measure=False)
        following = self._next(found)
        values = [self._smallest if found is None else found]
        if memory.measure and following is not None:
            values.append(following)
        return {value: MemoryRun(self._of(value), memory, self._estimator, self._observer, self._estimates[value])
                for value in values}

    def _row(self, found: int | None, runs: dict[int, MemoryRun]) -> dict[str, Any]:
        target, following = self._plan.memory.target, self._next(found)
        needed = None if found is None else self._estimates[found].needed_bytes
        verified = {value: run.entry.status for value, run in runs.items()
                    if self._plan.memory.measure and run.entry.status in ("ok", "oom")}
        return {
            "searched": self._plan.axis, "device": target.name, "limit_bytes": target.memory_bytes, "value": found,
            "needed_bytes": needed,
            "margin_bytes": None if needed is None or target.memory_bytes is None else target.memory_bytes - needed,
            "next_value": following,
            "next_needed_bytes": None if following is None else self._estimates[following].needed_bytes,
            "verified": None if found is None else verified.get(found),
            "next_verified": None if found is None or following is None else verified.get(following),
        }
