"""Running basic operations into a record, one case per problem and precision."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from charact.core.errors import UserError
from charact.core.observer import Observer
from charact.execution.interrupt import Interrupt
from charact.machine.facts import device_name
from charact.measure.case_loop import ending_of, run_each
from charact.measure.microbench.collectives import time_over_ranks
from charact.measure.microbench.operation_timing import OperationTiming, result_error, rotated_inputs, time_direction
from charact.measure.passes.timing import StopRule
from charact.ops import Kind, Problem, all_kinds, all_suites
from charact.ops.numerics import DTYPES
from charact.record.manifest import CaseEntry
from charact.record.manifest_passes import Direction, OpsPass
from charact.record.schema import Rows
from charact.record.writer import RunWriter


@dataclass(frozen=True)
class OperationCase:
    """A problem in a precision on a device."""

    problem: Problem
    precision: str
    device: torch.device
    number: int = 1
    """Index of the problem's occurrence in the suite, from 1."""

    @property
    def id(self) -> str:
        """Return a readable and stable identifier, e.g. `gemm-3072x128x1024-fp32-cpu`."""
        parts = [self.problem.text.replace(":", "-"), self.variant, self.precision, str(self.device).replace(":", "")]
        return "-".join(part for part in parts if part)

    @property
    def variant(self) -> str:
        """Return suite, set and occurrence of the problem, e.g. `deepbench-training` or `deepbench-training-2`."""
        again = str(self.number) if self.number > 1 else None
        return "-".join(part for part in (self.problem.suite, self.problem.set, again) if part)

    @cached_property
    def kind(self) -> Kind:
        """Return the kind of its operation."""
        return all_kinds()[self.problem.operation]

    @property
    def directions(self) -> tuple[str, ...]:
        """Return the measured directions."""
        return ("forward",) if self.problem.forward_only else self.kind.directions

    def refusal(self) -> str | None:
        """Return why it cannot run, or None."""
        return self.kind.refusal(self.problem, self.precision, self.device)


def operation_cases(problems: Sequence[Problem], precisions: Sequence[str],
                    device: torch.device) -> list[OperationCase]:
    """Return every problem in every precision; duplicates are kept within a suite, but not among named problems."""
    cases: list[OperationCase] = []
    seen: Counter[tuple[str, str | None, str | None]] = Counter()
    for problem in problems:
        place = (problem.text, problem.suite, problem.set)
        seen[place] += 1
        if seen[place] == 1 or problem.suite is not None:
            cases += [OperationCase(problem, precision, device, seen[place]) for precision in precisions]
    return cases


def run_operations(cases: Sequence[OperationCase], rule: StopRule, writer: RunWriter, observer: Observer,
                   interrupt: Interrupt, *, hot: bool = False) -> None:
    """Time each case and write it to the record; errors and signals: see `run_each`.

    The rule is that of a direction, in repetitions. `hot`: whether all calls use the same inputs.
    """
    def run(case: OperationCase) -> list[tuple[CaseEntry, dict[str, Rows]]]:
        suite = case.problem.suite
        entry = CaseEntry(
            case.id, "ok", workload=case.problem.text, variant=case.variant, mode="op", precision=case.precision,
            device=str(case.device), device_name=device_name(case.device), data="synthetic",
            source=None if suite is None else all_suites()[suite].source)
        problem_rows = [_problem_row(case, direction, hot=hot) for direction in case.directions]
        repetition_rows: Rows = []
        directions: dict[str, Direction] = {}

        def measure() -> None:
            if (refusal := case.refusal()) is not None:
                raise UserError(refusal)
            for row in problem_rows:
                direction = row["direction"]
                observer.pass_started(direction)
                timing, checked = _measure(case, direction, rule, observer, hot=hot)
                row.update(checked)
                repetition_rows.extend({"direction": direction, **repetition} for repetition in timing.rows)
                directions[direction] = timing.facts

        ending = ending_of(measure, case.device, case.precision, interrupt)
        if ending is not None:
            entry.update(**ending)
            repetition_rows.clear()
        entry.passes["ops"] = OpsPass("failed" if ending else "ok", entry.reason, directions=directions)
        return [(entry, {"problems": problem_rows, "repetitions": repetition_rows})]

    run_each(cases, run, writer, observer, interrupt)


def _measure(case: OperationCase, direction: str, rule: StopRule, observer: Observer, *,
             hot: bool) -> tuple[OperationTiming, dict[str, Any]]:
    problem, device = case.problem, case.device
    if device.type == "cuda":
        torch.cuda.set_device(device)  # events are recorded on the current one
    prepared = case.kind.prepare(problem, direction, case.precision, device)
    if "ranks" in problem.sizes:
        timing, error = time_over_ranks(problem.text, case.precision, device, rule, hot=hot)
    else:
        rotated = rotated_inputs(prepared, device, hot=hot)
        error = result_error(prepared, rotated[0])
        timing = time_direction(prepared, rotated, device, rule, observer.iteration)
    return timing, {"max_error": error, "tolerance": prepared.tolerance}


def _problem_row(case: OperationCase, direction: str, *, hot: bool) -> dict[str, Any]:
    kind, problem = case.kind, case.problem
    published, convention = kind.published_flop(problem, direction) or (None, problem.convention)
    return {
        "operation": problem.operation, "problem": problem.text, "suite": problem.suite, "set": problem.set,
        "direction": direction, "flop": kind.flop(problem, direction), "published_flop": published,
        "convention": convention, "bytes": kind.num_bytes(problem, direction, DTYPES[case.precision].itemsize),
        "sparsity_frac": kind.sparsity_frac(problem), "layout": problem.sizes.get("layout"),
        "hot": "yes" if hot else "no", "max_error": None, "tolerance": None,
    }
