"""Construction of a model's latency from the times of its bricks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from charact.analysis.bricks.brick_uses import Use, missing, uses
from charact.analysis.bricks.correction_cache import Correction
from charact.analysis.bricks.times import BrickTimes, interval
from charact.analysis.common.significance import Values
from charact.bricks.suite.composition import Composition
from charact.record.reader import Rows

_PHASES = {"infer": ("all",), "train": ("forward", "backward", "update", "all")}


@dataclass(frozen=True, eq=False)
class Construction:
    """A constructed model: rows of the tables `pieces` and `constructions`, and inputs of the correction.

    `sum_s` is the uncorrected sum (s) of a whole iteration, or None with a `reason` if a brick has no time. `clock` is
    the column with its times, `host_s` or `device_s`.
    """

    composition: Composition
    times: BrickTimes
    clock: str | None
    sum_s: float | None
    num_backward_starts: int
    reason: str | None
    pieces: Rows
    latencies: Rows


def construct(composition: Composition, times: BrickTimes, correction: Correction | str,
              layer_types: Mapping[str, Sequence[str]] | None = None) -> Construction:
    """Construct a model's latency (s) by three strategies: sequential, critical path and corrected.

    *Sequential* is the sum of the bricks' median times, for training also by phase. The start of a backward pass has an
    overhead, which is measured separately, subtracted from each brick, and added once per model. Times of optimizer
    steps are recorded without their start, which is also added once. *Critical path* is the longest path through the
    graph of segments, forward and backward; updates and gradient sums are added in full. *Corrected* applies the
    correction to the sequential sum, for whole iterations only. A run with the paper's method has `paper` instead of
    `sequential`. On CUDA all strategies use the clock with the larger sum, device or host, because a model waits for
    the slower one.

    *Error*: the interval covers the variation between rounds, not systematic errors of bricks or of the correction.

    Args:
        composition: the model.
        times: times of the suite's bricks.
        correction: the correction, or the reason why there is none.
        layer_types: layer types by brick; they describe missing bricks in the reason.
    """
    brick_uses = uses(composition, times)
    reason = missing(composition, brick_uses, times, layer_types or {})
    if reason is not None:
        rows = [_row(strategy, phase, None, reason) for strategy in _strategies(times)
                for phase in _phases(composition, strategy)]  # fmt: skip
        return Construction(composition, times, None, None, 0, reason, _piece_rows(brick_uses, times, None), rows)
    sums = {clock: _sums(brick_uses, times, clock) for clock in times.clocks}
    clock = max(sums, key=lambda each: float(sum(sums[each].values())[0]))  # type: ignore[index]
    num_starts = sum(use.starts_backward for use in brick_uses)
    by_strategy = {_strategies(times)[0]: sums[clock], "critical_path": _paths(composition, brick_uses, times, clock)}
    rows = []
    for strategy, by_phase in by_strategy.items():
        by_phase["all"] = np.asarray(sum(by_phase.values()))
        rows += [_row(strategy, phase, by_phase[phase]) for phase in _phases(composition, strategy)]
    whole = sums[clock]["all"]
    rows.append(_corrected(composition, whole, num_starts, correction))
    return Construction(composition, times, clock, float(whole[0]), num_starts, None,
                        _piece_rows(brick_uses, times, clock), rows)  # fmt: skip


def _strategies(times: BrickTimes) -> tuple[str, ...]:
    return "paper" if times.facts["method"] == "paper" else "sequential", "critical_path", "corrected"


def _phases(composition: Composition, strategy: str) -> tuple[str, ...]:
    return ("all",) if strategy == "corrected" else _PHASES[composition.mode]


def _sums(brick_uses: Sequence[Use], times: BrickTimes, clock: str) -> dict[str, Values]:
    """Return the uncorrected sums by phase; 0 for a phase that the model does not have."""
    sums = _starts(brick_uses, times, clock)
    for use in brick_uses:
        sums[use.phase] = sums[use.phase] + use.number * _drawn(use, times, clock)
    return sums


def _paths(composition: Composition, brick_uses: Sequence[Use], times: BrickTimes, clock: str) -> dict[str, Values]:
    """Return the longest path by phase, plus the bricks outside of the graph; backward has the same edges."""
    placed = [use for use in brick_uses if use.piece is not None]
    lengths = _starts(brick_uses, times, clock)
    for phase in dict.fromkeys(use.phase for use in placed):
        by_piece = {use.piece: _drawn(use, times, clock) for use in placed if use.phase == phase}
        lengths[phase] = lengths[phase] + _longest(composition, by_piece)
    for use in brick_uses:
        if use.piece is None:
            lengths[use.phase] = lengths[use.phase] + use.number * _drawn(use, times, clock)
    return lengths


def _longest(composition: Composition, by_piece: Mapping[int | None, Values]) -> Values:
    """Return the length of the longest path through the graph, for each draw separately."""
    ends: list[Values] = []
    for number, piece in enumerate(composition.pieces):
        before = {source[0] for source in piece.inputs if source is not None}.union(piece.after)
        begin = reduce(np.maximum, (ends[source] for source in before), np.zeros(1))
        ends.append(begin + by_piece.get(number, np.zeros(1)))
    return reduce(np.maximum, ends, np.zeros(1))


def _starts(brick_uses: Sequence[Use], times: BrickTimes, clock: str) -> dict[str, Values]:
    """Return the overheads that occur once per model, by phase."""
    backward_s = times.start_s("backward_start_s", clock) if any(use.starts_backward for use in brick_uses) else 0.0
    update_s = times.start_s("step_start_s", clock) if any(use.phase == "update" for use in brick_uses) else 0.0
    return {"forward": np.zeros(1), "backward": np.array([backward_s]), "update": np.array([update_s])}


def _drawn(use: Use, times: BrickTimes, clock: str) -> Values:
    """Return the median time and draws of one use; for a backward pass, without the overhead of its start."""
    drawn = times.drawn(use.brick, use.timed_as, clock)
    return np.maximum(drawn - times.start_s("backward_start_s", clock), 0.0) if use.starts_backward else drawn


def _corrected(composition: Composition, whole: Values, num_starts: int,
               correction: Correction | str) -> dict[str, object]:
    if isinstance(correction, str):
        return _row("corrected", "all", None, correction)
    drawn = whole * correction.factor + (
        correction.module_call_s * composition.num_module_calls + correction.piece_s * len(composition.pieces)
        + correction.backward_start_s * num_starts)  # fmt: skip
    if drawn.min() <= 0:
        return _row("corrected", "all", None, "the model is too short: the correction would make its latency negative")
    return _row("corrected", "all", drawn)


def _row(strategy: str, phase: str, drawn: Values | None, reason: str | None = None) -> dict[str, object]:
    """Return a row of the table `constructions`."""
    low, high = (None if drawn is None else interval(drawn)) or (None, None)
    return {"strategy": strategy, "phase": phase, "latency_s": None if drawn is None else float(drawn[0]),
            "low_s": low, "high_s": high, "reason": reason}  # fmt: skip


def _piece_rows(brick_uses: Sequence[Use], times: BrickTimes, clock: str | None) -> Rows:
    """Return the rows of the table `pieces`, with all available times even if the model has no latency."""
    rows = []
    for use in brick_uses:
        known = times.bricks.get(use.brick, {})
        own_clock = clock or next(iter(times.clocks), None)
        time_s = None
        if own_clock is not None and times.has(use.brick, use.timed_as):
            drawn = _drawn(use, times, own_clock)
            time_s = float(drawn[0]) * use.number
        rows.append({"piece": use.piece, "brick": use.brick, "num_layers": known.get("num_layers"),
                     "layer_types": known.get("layer_types"), "phase": use.phase, "time_s": time_s,
                     "num_uses_here": use.number,
                     "method": None if time_s is None else times.method(use.brick)})  # fmt: skip
    return rows
