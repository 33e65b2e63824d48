"""A model's latency, constructed from the times of the bricks that it is made of."""

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
    """What bricks make of a model: rows of the tables `pieces` and `constructions`, and what a correction is told.

    `sum_s` is the plain sum of a whole iteration, None with a `reason` where a brick has no time. `clock` is the one
    that times were read from.
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
    """Construct a model's latency (s) by the sequential, the critical-path and the corrected strategy.

    *Sequential* is the sum of the bricks' medians, in training by phase: what starting a backward pass takes is
    measured by itself, taken from each brick's, and added once for the model; so is an optimizer's step. *Critical
    path* is the longest way through the graph of pieces, forward and backward alike; updates and sums of gradients
    count in full. *Corrected* is of whole iterations. A run of the paper's method gives `paper` in place of
    `sequential`. On CUDA the larger of two sums counts, that of the device's times and that of the host's: a model
    waits for whichever is slower.

    *Error*: the interval tells how rounds scatter, not what bricks cannot see nor how well the correction is known.

    Args:
        composition: the model.
        times: of the suite's bricks.
        correction: or why there is none.
        layer_types: of bricks that the run may lack, by identifier, to name what is missing.
    """
    stands = uses(composition, times)
    reason = missing(composition, stands, times, layer_types or {})
    if reason is not None:
        rows = [_row(strategy, phase, None, reason) for strategy in _strategies(times)
                for phase in _phases(composition, strategy)]  # fmt: skip
        return Construction(composition, times, None, None, 0, reason, _piece_rows(stands, times, None), rows)
    sums = {clock: _sums(stands, times, clock) for clock in times.clocks}
    clock = max(sums, key=lambda each: float(sum(sums[each].values())[0]))  # type: ignore[index]
    num_starts = sum(use.starts_backward for use in stands)
    by_strategy = {_strategies(times)[0]: sums[clock], "critical_path": _paths(composition, stands, times, clock)}
    rows = []
    for strategy, by_phase in by_strategy.items():
        by_phase["all"] = np.asarray(sum(by_phase.values()))
        rows += [_row(strategy, phase, by_phase[phase]) for phase in _phases(composition, strategy)]
    whole = sums[clock]["all"]
    rows.append(_corrected(composition, whole, num_starts, correction))
    return Construction(composition, times, clock, float(whole[0]), num_starts, None,
                        _piece_rows(stands, times, clock), rows)  # fmt: skip


def _strategies(times: BrickTimes) -> tuple[str, ...]:
    return "paper" if times.facts["method"] == "paper" else "sequential", "critical_path", "corrected"


def _phases(composition: Composition, strategy: str) -> tuple[str, ...]:
    return ("all",) if strategy == "corrected" else _PHASES[composition.mode]


def _sums(stands: Sequence[Use], times: BrickTimes, clock: str) -> dict[str, Values]:
    """Plain sums by phase; a phase that the model does not have is 0."""
    sums = _starts(stands, times, clock)
    for use in stands:
        sums[use.phase] = sums[use.phase] + use.number * _drawn(use, times, clock)
    return sums


def _paths(composition: Composition, stands: Sequence[Use], times: BrickTimes, clock: str) -> dict[str, Values]:
    """The longest way by phase, with what has no place in the graph. Backward it runs along the same edges."""
    placed = [use for use in stands if use.piece is not None]
    lengths = _starts(stands, times, clock)
    for phase in dict.fromkeys(use.phase for use in placed):
        by_piece = {use.piece: _drawn(use, times, clock) for use in placed if use.phase == phase}
        lengths[phase] = lengths[phase] + _longest(composition, by_piece)
    for use in stands:
        if use.piece is None:
            lengths[use.phase] = lengths[use.phase] + use.number * _drawn(use, times, clock)
    return lengths


def _longest(composition: Composition, by_piece: Mapping[int | None, Values]) -> Values:
    """Length of the longest way through the graph, of each drawing by itself."""
    ends: list[Values] = []
    for number, piece in enumerate(composition.pieces):
        before = {source[0] for source in piece.inputs if source is not None}.union(piece.after)
        begin = reduce(np.maximum, (ends[source] for source in before), np.zeros(1))
        ends.append(begin + by_piece.get(number, np.zeros(1)))
    return reduce(np.maximum, ends, np.zeros(1))


def _starts(stands: Sequence[Use], times: BrickTimes, clock: str) -> dict[str, Values]:
    """What starts once for the whole model, by phase."""
    backward_s = times.start_s("backward_start_s", clock) if any(use.starts_backward for use in stands) else 0.0
    update_s = times.start_s("step_start_s", clock) if any(use.phase == "update" for use in stands) else 0.0
    return {"forward": np.zeros(1), "backward": np.array([backward_s]), "update": np.array([update_s])}


def _drawn(use: Use, times: BrickTimes, clock: str) -> Values:
    """Times of one use; of a backward pass without its start."""
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
        return _row("corrected", "all", None, "the model is too short for what the correction takes from it")
    return _row("corrected", "all", drawn)


def _row(strategy: str, phase: str, drawn: Values | None, reason: str | None = None) -> dict[str, object]:
    """A row of the table `constructions`."""
    low, high = (None if drawn is None else interval(drawn)) or (None, None)
    return {"strategy": strategy, "phase": phase, "latency_s": None if drawn is None else float(drawn[0]),
            "low_s": low, "high_s": high, "reason": reason}  # fmt: skip


def _piece_rows(stands: Sequence[Use], times: BrickTimes, clock: str | None) -> Rows:
    """Rows of the table `pieces`; where the model has no latency, bricks have what times they have."""
    rows = []
    for use in stands:
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
