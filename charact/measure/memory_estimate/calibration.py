"""Calibration of operators' internal memory on this machine's CPU, from small real runs.

oneDNN copies tensors into its own layouts and accumulates gradients in per-thread buffers; no tensor shows these
allocations. A small profiled run lists them for each operator. Runs at two input sizes and two batch sizes show how
each allocation grows with the tensors, which extrapolates to any other size.
"""

import itertools
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.profiler import ProfilerActivity, profile

from charact.core.operator_types import operator_type
from charact.execution.batches import Batches
from charact.execution.case import Case
from charact.execution.loop import Loop
from charact.execution.running_layer import RunningLayer
from charact.measure.memory_estimate.allocation_trace import MARK, AllocationTrace, Op, Recorder, record_iteration
from charact.measure.memory_estimate.fake_program import weight_shapes
from charact.measure.memory_estimate.inner_memory import Inner, Range

_FEATURES = ((0,), (1,), (2,), (3,), (4,), (5,), (0, 1), (0, 2), (0, 3), (1, 3), (1, 2), (2, 3), (0, 5), (4, 5),
             (0, 1, 3), (0, 1, 2), (0, 1, 2, 3))
"""Candidate feature sets (indices in `_features`), from simple to complex; the simplest that fits is used."""
_FITS_FRAC = (1e-4, 0.005, 0.03)
"""Fit tolerances in order of preference; the last one allows for rounding of small blocks to pages."""
_KNOWN, _SOLVED, _UNKNOWN = 0.02, 0.1, 0.5
"""Relative uncertainty of an amount: explained by fewer features than points; by as many, or roughly; not at all."""

Key = tuple[str, str, int]
"""Phase and name of an operator, and its index among equal ones."""


@dataclass(frozen=True)
class _Point:
    """A small run: its operators by key, and their internal allocations (> 0) and frees (< 0), in order."""

    case: Case
    ops: dict[Key, Op]
    trace: AllocationTrace
    amounts: dict[Key, list[int]]


@dataclass(frozen=True)
class _Growth:
    """A fitted dependence of an amount on features."""

    columns: list[int]
    factors: NDArray[Any]
    uncertainty: float

    def at(self, features: NDArray[Any]) -> float:
        """Return the amount for given features."""
        return max(0.0, float(features[self.columns] @ self.factors))


@dataclass(frozen=True)
class _OperatorModel:
    """Fitted internal memory of one operator."""

    amounts: list[tuple[int, _Growth | int]]
    """For each internal allocation (1) or free (-1), in order: its growth, or the index of one of the operator's output
    blocks."""
    made: list[_Growth]
    """Growth of each output block."""


class Calibration:
    """Small runs of a case, extrapolated to larger ones.

    Args:
        cases: cases to run, of one workload, mode and precision; a fit needs at least two sizes and two batch sizes.

    Raises:
        Exception: any error of the runs.
    """

    def __init__(self, cases: Sequence[Case]) -> None:
        self._points = _run(cases)
        self._models: dict[tuple[Key, str | None], _OperatorModel | None] = {}

    def inner(self, trace: AllocationTrace, case: Case) -> Range:
        """Return the internal memory of the operators of a case's trace."""
        low, likely, high = scenarios = [Inner([], [block.num_bytes for block in trace.blocks]) for _ in range(3)]
        uncertain = set()
        for key, op in _keyed(trace).items():
            if (key, op.library) not in self._models:
                self._models[key, op.library] = _known(self._points, key, op)
            known, extra, uncertainty = self._models[key, op.library], 0, 0.0
            if known is not None:
                features = _features(op, case)
                _fill(known, op, features, scenarios)
                peak, uncertainty = _peak_inside(known, op, features, likely.sizes)
                extra = max(0, peak - sum(likely.sizes[number] for number in op.made))
            factors = _factors(uncertainty)
            # oneDNN copies 16-bit matrices in tiles, so the memory stops growing at some size.
            if op.item_bytes == 2 and operator_type(op.name) == "GEMM":
                factors, uncertainty = (0.0, *factors[1:]), _UNKNOWN
            if extra and uncertainty == _UNKNOWN:
                uncertain.add(op.name)
            for inner, factor in zip(scenarios, factors, strict=True):
                inner.workspaces.append(round(extra * factor))
        return Range(low, likely, high, uncertain)


def _known(points: Sequence[_Point], key: Key, op: Op) -> _OperatorModel | None:
    """Fit an operator's model; return None if no point ran it (fake tensors decompose foreach operators)."""
    points = [point for point in points if key in point.ops and point.ops[key].library == op.library]
    if not points:
        return None
    lists = [point.amounts[key] for point in points]
    made = list(zip(*([point.trace.blocks[number].num_bytes for number in point.ops[key].made] for point in points),
                    strict=False))
    at = np.array([_features(point.ops[key], point.case) for point in points])
    grown = [_growth(at, sizes) for sizes in made]
    if len({tuple(amount > 0 for amount in amounts) for amounts in lists}) > 1:  # the algorithm depends on the size
        peaks = [max(itertools.accumulate(amounts, initial=0)) for amounts in lists]
        return _OperatorModel([(1, replace(_growth(at, peaks), uncertainty=_UNKNOWN))], grown)
    amounts: list[tuple[int, _Growth | int]] = []
    for step in zip(*lists, strict=True):
        sizes = tuple(map(abs, step))
        amounts.append((1 if step[0] > 0 else -1, made.index(sizes) if sizes in made else _growth(at, sizes)))
    return _OperatorModel(amounts, grown)


def _growth(at: NDArray[Any], values: Sequence[int]) -> _Growth:
    """Return the simplest growth that explains an amount at all points; rows of `at` are their features."""
    known = np.array(values, dtype=float)
    for tolerance, chosen in itertools.product(_FITS_FRAC, _FEATURES):
        columns = list(chosen)
        if len(columns) > len(known):
            continue
        factors: NDArray[Any] = np.linalg.lstsq(at[:, columns], known, rcond=None)[0]
        if (factors >= 0).all() and (np.abs(at[:, columns] @ factors - known) <= tolerance * known).all():
            well = len(columns) < len(known) and tolerance < _FITS_FRAC[-1]
            return _Growth(columns, factors, _KNOWN if well else _SOLVED)
    column = next(column for column in (4, 2, 0) if at[:, column].any())
    return _Growth([column], np.array([known.max() / at[:, column].max()]), _UNKNOWN)


def _fill(known: _OperatorModel, op: Op, features: NDArray[Any], scenarios: Sequence[Inner]) -> None:
    """Set the sizes of blocks that are empty in fake kernels: some of oneDNN's workspaces."""
    for growth, number in zip(known.made, op.made, strict=False):
        if not scenarios[1].sizes[number]:
            for inner, factor in zip(scenarios, _factors(growth.uncertainty), strict=True):
                inner.sizes[number] = round(growth.at(features) * factor)


def _peak_inside(known: _OperatorModel, op: Op, features: NDArray[Any], sizes: Sequence[int]) -> tuple[int, float]:
    """Return the peak of an operator's internal memory and its relative uncertainty."""
    held = peak = uncertainty = 0.0
    for sign, amount in known.amounts:
        if isinstance(amount, _Growth):
            uncertainty = max(uncertainty, amount.uncertainty)
            held += sign * amount.at(features)
        elif amount < len(op.made):
            held += sign * sizes[op.made[amount]]
        else:  # some fake kernels omit blocks
            held += sign * known.made[amount].at(features)
        peak = max(peak, held)
    return round(peak), uncertainty


def _factors(uncertainty: float) -> tuple[float, float, float]:
    return 1 - uncertainty, 1.0, 1 / (1 - uncertainty)


def _features(op: Op, case: Case) -> NDArray[Any]:
    """Return features: 1, batch size, activations, these per sample, elements read, and read times read per sample."""
    of_one, read_of_one = op.num_activations / case.batch_size, op.num_read / case.batch_size
    return np.array([1.0, case.batch_size, op.num_activations, of_one, op.num_read, op.num_read * read_of_one])


def _run(cases: Sequence[Case]) -> list[_Point]:
    """Run each case once to warm up and once profiled; reuse the model if its shapes do not change."""
    points, shapes_before, loop, recorder = [], None, None, None
    for case in cases:
        shapes = weight_shapes(case)
        if loop is None or recorder is None or shapes is None or shapes != shapes_before:
            loop, shapes_before = Loop(case), shapes
            recorder = Recorder(RunningLayer(loop.model), marks=True)
        points.append(_run_one(case, loop, recorder))
    return points


def _run_one(case: Case, loop: Loop, recorder: Recorder) -> _Point:
    loop.feed(Batches(case, case.dataset(), shuffle=case.training, whole=True).first(case.data.seed))
    try:
        record_iteration(loop, recorder)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            trace = record_iteration(loop, recorder)
    finally:
        loop.close()
    keyed = _keyed(trace)
    return _Point(case, keyed, trace, dict(zip(keyed, _amounts(profiler, len(trace.ops)), strict=True)))


def _keyed(trace: AllocationTrace) -> dict[Key, Op]:
    """Return operators by key, in order."""
    counts: Counter[tuple[str, str]] = Counter()
    keyed: dict[Key, Op] = {}
    for op in trace.ops:
        kind = (op.phase, op.name)
        keyed[*kind, counts[kind]] = op
        counts[kind] += 1
    return keyed


def _amounts(profiler: profile, num_ops: int) -> list[list[int]]:
    """Return bytes allocated (> 0) and freed (< 0) inside each annotated operator, in order."""
    assert profiler.profiler is not None
    assert profiler.profiler.kineto_results is not None
    allocations: list[tuple[int, int]] = []
    marks: list[tuple[int, int, int]] = []

    def visit(events: Sequence[Any]) -> None:
        for event in events:
            if event.name == "[memory]":
                allocations.append((event.start_time_ns, event.extra_fields.alloc_size))
            elif event.name.startswith(MARK):
                marks.append((event.start_time_ns, event.end_time_ns, int(event.name.removeprefix(MARK))))
            visit(event.children)

    visit(profiler.profiler.kineto_results.experimental_event_tree())
    marks.sort()
    amounts: dict[int, list[int]] = defaultdict(list)
    for time_ns, num_bytes in sorted(allocations, key=lambda allocation: allocation[0]):
        index = bisect_right(marks, time_ns, key=lambda mark: mark[0]) - 1
        if index >= 0 and time_ns <= marks[index][1]:
            amounts[marks[index][2]].append(num_bytes)
    return [amounts[number] for number in range(num_ops)]
