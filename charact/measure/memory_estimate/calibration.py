"""What operators allocate inside themselves on this machine's CPU, from small real runs.

oneDNN copies tensors into layouts of its own, and sums gradients in buffers a thread: allocations that no tensor shows.
In a small run under marks every operator has its list of them, and from run to run each of them grows as the tensors
do. Laid through two sizes and two batch sizes, that tells what they will be at any other.
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
from charact.measure.memory_estimate.allocation_trace import MARK, Op, Recorder, Tape, record_iteration
from charact.measure.memory_estimate.fake_program import weight_shapes

_FEATURES = ((0,), (1,), (2,), (3,), (4,), (5,), (0, 1), (0, 2), (0, 3), (1, 3), (1, 2), (2, 3), (0, 5), (4, 5),
             (0, 1, 3), (0, 1, 2), (0, 1, 2, 3))
"""What an allocation may grow with, by place in `_features`; the simplest that fits is taken."""
_FITS_FRAC = (1e-4, 0.005, 0.03)
"""A growth that fits better is preferred to a simpler one; the last is what rounding to pages makes of small blocks."""
_KNOWN, _SOLVED, _UNKNOWN = 0.02, 0.1, 0.5
"""What is stated about an amount, up and down as a share: of one that fewer features explain well than there are
points, of one that takes as many or is explained roughly, and of one that none explain."""

Key = tuple[str, str, int]
"""Phase and name of an operator, and which of those it is."""


@dataclass(frozen=True)
class Inner:
    """What each operator of a tape needs inside, and of what size each block is."""

    workspaces: list[int]
    sizes: list[int]


@dataclass(frozen=True)
class Range:
    """The same at the least, most likely, and at the most."""

    low: Inner
    likely: Inner
    high: Inner
    doubted: set[str]
    """Operators whose runs no simple growth explains; their range is wide."""


@dataclass(frozen=True)
class _Point:
    """One small run: its operators by key, and the inner allocations of each (> 0) and releases (< 0), in order."""

    case: Case
    ops: dict[Key, Op]
    tape: Tape
    amounts: dict[Key, list[int]]


@dataclass(frozen=True)
class _Growth:
    """How an amount grows from small runs to large ones."""

    columns: list[int]
    factors: NDArray[Any]
    doubt: float

    def at(self, features: NDArray[Any]) -> float:
        """The amount where the features are these."""
        return max(0.0, float(features[self.columns] @ self.factors))


@dataclass(frozen=True)
class _Known:
    """What the points say of one operator."""

    amounts: list[tuple[int, _Growth | int]]
    """Of each inner allocation (1) or release (-1), in order: how it grows, or the place of the block it is among
    those that the operator makes."""
    made: list[_Growth]
    """Of each block that it makes."""


class Calibration:
    """Small runs of a case, and what they say of large ones.

    Args:
        cases: the points, of one workload, mode and precision; for a fit at least two sizes and two batch sizes.

    Raises:
        Exception: whatever running them raises.
    """

    def __init__(self, cases: Sequence[Case]) -> None:
        self._points = _run(cases)
        self._known: dict[tuple[Key, str | None], _Known | None] = {}

    def inner(self, tape: Tape, case: Case) -> Range:
        """What the operators of a tape of the case need inside."""
        low, likely, high = scenarios = [Inner([], [block.num_bytes for block in tape.blocks]) for _ in range(3)]
        doubted = set()
        for key, op in _keyed(tape).items():
            if (key, op.library) not in self._known:
                self._known[key, op.library] = _known(self._points, key, op)
            known, extra, doubt = self._known[key, op.library], 0, 0.0
            if known is not None:
                features = _features(op, case)
                _fill(known, op, features, scenarios)
                peak, doubt = _peak_inside(known, op, features, likely.sizes)
                extra = max(0, peak - sum(likely.sizes[number] for number in op.made))
            factors = _factors(doubt)
            # oneDNN copies matrices of such numbers in tiles: from some size on that takes no more memory.
            if op.item_bytes == 2 and operator_type(op.name) == "GEMM":
                factors, doubt = (0.0, *factors[1:]), _UNKNOWN
            if extra and doubt == _UNKNOWN:
                doubted.add(op.name)
            for inner, factor in zip(scenarios, factors, strict=True):
                inner.workspaces.append(round(extra * factor))
        return Range(low, likely, high, doubted)


def _known(points: Sequence[_Point], key: Key, op: Op) -> _Known | None:
    """What the points say of an operator; None where none ran it: on fake tensors lists of tensors are taken apart."""
    points = [point for point in points if key in point.ops and point.ops[key].library == op.library]
    if not points:
        return None
    lists = [point.amounts[key] for point in points]
    made = list(zip(*([point.tape.blocks[number].num_bytes for number in point.ops[key].made] for point in points),
                    strict=False))
    at = np.array([_features(point.ops[key], point.case) for point in points])
    grown = [_growth(at, sizes) for sizes in made]
    if len({tuple(amount > 0 for amount in amounts) for amounts in lists}) > 1:  # other steps at other sizes
        peaks = [max(itertools.accumulate(amounts, initial=0)) for amounts in lists]
        return _Known([(1, replace(_growth(at, peaks), doubt=_UNKNOWN))], grown)
    amounts: list[tuple[int, _Growth | int]] = []
    for step in zip(*lists, strict=True):
        sizes = tuple(map(abs, step))
        amounts.append((1 if step[0] > 0 else -1, made.index(sizes) if sizes in made else _growth(at, sizes)))
    return _Known(amounts, grown)


def _growth(at: NDArray[Any], values: Sequence[int]) -> _Growth:
    """The simplest growth that explains an amount at all points, whose features are the rows of `at`."""
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


def _fill(known: _Known, op: Op, features: NDArray[Any], scenarios: Sequence[Inner]) -> None:
    """Tell the size of blocks that fake kernels make empty: some of oneDNN's workspaces."""
    for growth, number in zip(known.made, op.made, strict=False):
        if not scenarios[1].sizes[number]:
            for inner, factor in zip(scenarios, _factors(growth.doubt), strict=True):
                inner.sizes[number] = round(growth.at(features) * factor)


def _peak_inside(known: _Known, op: Op, features: NDArray[Any], sizes: Sequence[int]) -> tuple[int, float]:
    """The most that is allocated inside an operator at a time, and the doubt about it."""
    held = peak = doubt = 0.0
    for sign, amount in known.amounts:
        if isinstance(amount, _Growth):
            doubt = max(doubt, amount.doubt)
            held += sign * amount.at(features)
        elif amount < len(op.made):
            held += sign * sizes[op.made[amount]]
        else:  # fake kernels leave some blocks out
            held += sign * known.made[amount].at(features)
        peak = max(peak, held)
    return round(peak), doubt


def _factors(doubt: float) -> tuple[float, float, float]:
    return 1 - doubt, 1.0, 1 / (1 - doubt)


def _features(op: Op, case: Case) -> NDArray[Any]:
    """A constant, the batch size, activations, those of one sample, those read, and each of these with its sample."""
    of_one, read_of_one = op.num_activations / case.batch_size, op.num_read / case.batch_size
    return np.array([1.0, case.batch_size, op.num_activations, of_one, op.num_read, op.num_read * read_of_one])


def _run(cases: Sequence[Case]) -> list[_Point]:
    """Run each case until it is warm, and one iteration more under marks; a model that fits all is made once."""
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
            tape = record_iteration(loop, recorder)
    finally:
        loop.close()
    keyed = _keyed(tape)
    return _Point(case, keyed, tape, dict(zip(keyed, _amounts(profiler, len(tape.ops)), strict=True)))


def _keyed(tape: Tape) -> dict[Key, Op]:
    """Operators by phase, name and number among those; in order."""
    counts: Counter[tuple[str, str]] = Counter()
    keyed: dict[Key, Op] = {}
    for op in tape.ops:
        kind = (op.phase, op.name)
        keyed[*kind, counts[kind]] = op
        counts[kind] += 1
    return keyed


def _amounts(profiler: profile, num_ops: int) -> list[list[int]]:
    """Bytes that were allocated (> 0) and given back (< 0) inside each marked operator, in order."""
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
