"""Construction of a model's latency from the times of its bricks, measured or predicted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Annotated, Any

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from charact.analysis.common.significance import MIN_ITERATIONS, Values, resampled
from charact.bricks.suite.brick import runs_as
from charact.bricks.suite.composition import Composition
from charact.bricks.suite.prediction import predict, sizes_of
from charact.core.errors import UserError
from charact.record.manifest import CaseEntry
from charact.record.manifest_passes import ConstructPass, Passes
from charact.record.reader import Rows, Run
from charact.record.schema import LEFT_OUT, STRATEGIES

_Frac = Annotated[float, msgspec.Meta(ge=0)]


class Correction(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Systematic differences between models and their bricks, fitted on calibration models.

    The corrected latency is `factor` times the plain sum, plus a time for each module call, each segment, and each
    segment that has a backward pass. A coefficient that the models do not determine stays at 1 or 0; `reasons` holds
    the reason by its name.
    """

    factor: Annotated[float, msgspec.Meta(gt=0)]
    module_call_s: float
    piece_s: float
    backward_start_s: float
    reasons: dict[str, str]
    models: Annotated[list[str], msgspec.Meta(min_length=2)]
    """Calibration models."""
    plain_error_frac: _Frac
    """Mean |error| of the plain sum on these models."""
    error_frac: _Frac
    """Mean |error| in leave-one-out cross-validation."""
    worst_error_frac: _Frac
    """Largest |error| in leave-one-out cross-validation."""


CLOCKS = ("host_s", "device_s")


class BrickTimes:
    """Times of the bricks of one case of a suite's run.

    `bricks` maps each brick's identifier to its row of the table `bricks`; `facts` holds the facts of the pass
    `bricks`.
    """

    def __init__(self, run: Run, case: str) -> None:
        self.run, self.case = run, run.entry(case)
        if "bricks" not in self.case.passes:
            raise UserError(f"{run.path} is not a run of a suite: charact bricks run makes one")
        self.facts = self.case.passes.bricks
        rows = run.bricks.query("case == @case")
        self.bricks: dict[str, dict[Any, Any]] = {row["brick"]: row for row in rows.to_dict("records")}
        timed = run.brick_times.query("case == @case")
        self.num_repeats = len(timed[["round", "call"]].drop_duplicates())
        """Number of timed calls of each brick."""
        timed = timed.groupby(["brick", "phase", "round"], as_index=False, sort=False)[list(CLOCKS)].mean()
        self.clocks = [clock for clock in CLOCKS if timed[clock].notna().any()]
        """Clocks with recorded times: the host's, and on CUDA also the device's."""
        self._rounds: dict[str, dict[tuple[str, str], Values]] = {}
        self._common: dict[str, NDArray[np.bool_]] = {}
        for clock in self.clocks:
            by_round = timed.pivot(index=["brick", "phase"], columns="round", values=clock).astype("float64")
            self._rounds[clock] = dict(zip(by_round.index, by_round.to_numpy(), strict=True))
            self._common[clock] = by_round.notna().all(axis="index").to_numpy()
        self._drawn: dict[tuple[str, str, str], Values] = {}
        for clock in self.clocks:
            self._predict(clock)

    def has(self, brick: str, phase: str) -> bool:
        """Return whether each clock has times of a brick's phase, measured or predicted."""
        return bool(self.clocks) and all((brick, phase) in self._rounds[clock] or (brick, phase, clock) in self._drawn
                                         for clock in self.clocks)  # fmt: skip

    def method(self, brick: str) -> str:
        """Return how the times of a brick were obtained: 'measured' or 'predicted' from other bricks."""
        return "predicted" if self.bricks[brick]["status"] == LEFT_OUT else "measured"

    def drawn(self, brick: str, phase: str, clock: str) -> Values:
        """Return the median time (s) of a brick's phase, followed by its bootstrap draws; pass it to `interval`.

        The bootstrap is of blocks of sqrt(n) of the rounds in which all bricks were timed; few rounds give no draws. A
        predicted brick has the prediction, followed by draws from the distribution of its error.
        """
        key = (brick, phase, clock)
        if key not in self._drawn:
            times = self._rounds[clock][brick, phase]
            median, common = np.median(times[~np.isnan(times)], keepdims=True), times[self._common[clock]]
            # The draws depend only on the number of values, so that all bricks use the same rounds.
            draws = resampled(common.tolist(), np.median) if len(common) >= MIN_ITERATIONS else np.empty(0)
            self._drawn[key] = np.concatenate([median, draws])
        return self._drawn[key]

    def _predict(self, clock: str) -> None:
        """Predict the forward times of bricks that were not timed from timed bricks with known work."""
        wanted = [brick for brick, row in self.bricks.items() if row["status"] == LEFT_OUT]
        known = [brick for brick, phase in self._rounds[clock]
                 if phase == "forward" and pd.notna(self.bricks[brick]["bytes"])]
        if not wanted or not known:
            return
        drawn = [self.drawn(brick, "forward", clock) for brick in known]
        times, deviations = predict([sizes_of(self.bricks[brick]) for brick in known],
                                    np.array([each[0] for each in drawn]),
                                    [sizes_of(self.bricks[brick]) for brick in wanted])
        noise = np.random.default_rng(0).standard_normal((len(wanted), len(drawn[0]) - 1))
        for brick, time_s, deviation, each in zip(wanted, times, deviations, noise, strict=True):
            self._drawn[brick, "forward", clock] = time_s * np.exp(deviation * np.concatenate([[0.0], each]))

    def start_s(self, name: str, clock: str) -> float:
        """Return the fixed overhead (s) of a backward pass (`backward_start_s`) or optimizer step (`step_start_s`)."""
        start = getattr(self.facts, name) or 0.0
        return float((start[clock] if isinstance(start, dict) else start) or 0.0)  # a float in earlier versions


_TAILS = 0.025, 0.975


def interval(drawn: Values) -> tuple[float, float] | None:
    """Return the 95 % interval of the first value; None without draws or if the draws' median is not positive.

    Args:
        drawn: the value, followed by its bootstrap draws.

    The bootstrap median of skewed values is biased upwards, noticeably in a sum of hundreds of bricks. The draws are
    therefore scaled so that their median is the value; this also keeps the interval above zero.
    """
    middle = np.median(drawn[1:]) if len(drawn) > 1 else 0.0
    if middle <= 0:
        return None
    low, high = np.quantile(drawn[1:] / middle, _TAILS)
    return float(drawn[0] * min(low, 1.0)), float(drawn[0] * max(high, 1.0))


_NAMED = 3
"""Maximum number of bricks named in a reason; the others are counted."""


@dataclass(frozen=True)
class Use:
    """A use of a brick in an iteration."""

    piece: int | None
    """Index of the segment; None for updates and gradient sums, which are not in the graph."""
    brick: str
    phase: str
    """Phase of the iteration."""
    timed_as: str
    """Phase of the brick's times: a gradient sum of the backward phase is timed as `forward`."""
    number: int = 1
    """How often the brick is used like this."""

    @property
    def starts_backward(self) -> bool:
        """Return whether the brick was timed with a backward pass, whose start is in its time."""
        return self.timed_as == "backward"


def uses(composition: Composition, times: BrickTimes) -> list[Use]:
    """Return all uses of bricks by phase. Bricks without a backward time have no gradients."""
    placed = list(enumerate(piece.brick for piece in composition.pieces))
    found = [Use(number, brick, "forward", "forward") for number, brick in placed]
    if composition.mode == "infer":
        return found
    found += [Use(number, brick, "backward", "backward") for number, brick in reversed(placed)
              if times.has(brick, "backward")]  # fmt: skip
    found += [Use(None, brick, "backward", "forward", number) for brick, number in composition.gradient_sums]
    return found + [Use(None, brick, "update", "update", number) for brick, number in composition.updates]


def missing(composition: Composition, brick_uses: Sequence[Use], times: BrickTimes,
            layer_types: Mapping[str, Sequence[str]]) -> str | None:
    """Return why a model cannot be constructed: bricks that the run lacks, or that have no time. None if it can be."""
    def first(texts: Sequence[str], separator: str) -> str:
        more = [f"{len(texts) - _NAMED} more"] if len(texts) > _NAMED else []
        return separator.join([*texts[:_NAMED], *more])

    untimed = list(dict.fromkeys(use.brick for use in brick_uses if not times.has(use.brick, use.timed_as)))
    lacking = [brick for brick in untimed if brick not in times.bricks]
    reasons = []
    if lacking:
        others = [*composition.updates, *composition.gradient_sums]
        num_pieces = sum(piece.brick in lacking for piece in composition.pieces)
        num_others = sum(brick in lacking for brick, _ in others)
        parts = [f"{num_pieces} of {len(composition.pieces)} segments"] if num_pieces else []
        parts += [f"{num_others} of {len(others)} kinds of updates and gradient sums"] if num_others else []
        types = sorted({name for brick in lacking for name in layer_types.get(brick, ())})
        of = f" of {', '.join(types)}" if types else ""
        bricks = first([f"brick {brick}" for brick in lacking], ", ")
        reasons.append(f"the run lacks {' and '.join(parts)}{of} ({bricks}): extend the suite by the model and run it")
    failed = []
    for brick in untimed:
        if (row := times.bricks.get(brick)) is not None:
            reason = f": {row['reason']}" if isinstance(row["reason"], str) else ""
            why = "not timed in this phase" if row["status"] == "ok" else f"{row['status']}{reason}"
            failed.append(f"brick {brick} has no time ({why})")
    return "; ".join([*reasons, *([first(failed, "; ")] if failed else [])]) or None


def brick_case(run: Run, composition: Composition) -> str:
    """Return the case of a suite's run that matches a model's mode, precision and cut.

    Bricks of mixed precision include their casts, and may be timed with those of fp32.
    """
    entries = run.entries_with("bricks")
    if not entries:
        raise UserError(f"{run.path} is not a run of a suite: charact bricks run makes one")
    matching = [entry for entry in entries if entry.mode == composition.mode
                and runs_as(entry.precision) == runs_as(composition.precision)]
    matching.sort(key=lambda entry: entry.precision != composition.precision)
    if not matching:
        timed = " and ".join(dict.fromkeys(f"{entry.mode} in {entry.precision}" for entry in entries))
        raise UserError(f"{composition.case} is {composition.mode} in {composition.precision}, {run.path} timed "
                        f"{timed}: charact bricks run --mode {composition.mode} --precision {composition.precision}")
    facts = matching[0].passes.bricks
    if (facts.g, facts.cut_method) != (composition.g, composition.method):
        raise UserError(f"{composition.case} is cut by '{composition.method}' at G = {composition.g}, the bricks of "
                        f"{run.path} by '{facts.cut_method}' at G = {facts.g}: run a suite with the same cut")
    return matching[0].case


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
    correction to the sequential sum, for whole iterations only. On CUDA all strategies use the clock with the
    larger sum, device or host, because a model waits for the slower one.

    *Error*: the interval covers the variation between rounds, not systematic errors of bricks or of the correction.
    """
    brick_uses = uses(composition, times)
    reason = missing(composition, brick_uses, times, layer_types or {})
    if reason is not None:
        rows = [_row(strategy, phase, None, reason) for strategy in STRATEGIES
                for phase in _phases(composition, strategy)]  # fmt: skip
        return Construction(composition, times, None, None, 0, reason, _piece_rows(brick_uses, times, None), rows)
    sums = {clock: _by_phase(composition, brick_uses, times, clock, is_path=False) for clock in times.clocks}
    clock = max(sums, key=lambda each: float(sums[each]["all"][0]))
    by_strategy = {"sequential": sums[clock],
                   "critical_path": _by_phase(composition, brick_uses, times, clock, is_path=True)}
    rows = [_row(strategy, phase, by_phase[phase]) for strategy, by_phase in by_strategy.items()
            for phase in _phases(composition, strategy)]
    whole, num_starts = sums[clock]["all"], sum(use.starts_backward for use in brick_uses)
    if isinstance(correction, str):
        rows.append(_row("corrected", "all", None, correction))
    else:
        drawn = whole * correction.factor + (
            correction.module_call_s * composition.num_module_calls + correction.piece_s * len(composition.pieces)
            + correction.backward_start_s * num_starts)  # fmt: skip
        short = "the model is too short: the correction would make its latency negative"
        rows.append(_row("corrected", "all", drawn) if drawn.min() > 0 else _row("corrected", "all", None, short))
    return Construction(composition, times, clock, float(whole[0]), num_starts, None,
                        _piece_rows(brick_uses, times, clock), rows)  # fmt: skip


def _phases(composition: Composition, strategy: str) -> tuple[str, ...]:
    return ("all",) if strategy == "corrected" else _PHASES[composition.mode]


def _by_phase(composition: Composition, brick_uses: Sequence[Use], times: BrickTimes, clock: str, *, is_path: bool
              ) -> dict[str, Values]:
    """Return the uncorrected sum or the longest path (s) by phase, and of `all`; 0 for a phase that a model lacks.

    Bricks outside of the graph, and overheads that occur once per model, are added in full.
    """
    backward_s = times.start_s("backward_start_s", clock) if any(use.starts_backward for use in brick_uses) else 0.0
    update_s = times.start_s("step_start_s", clock) if any(use.phase == "update" for use in brick_uses) else 0.0
    totals = {"forward": np.zeros(1), "backward": np.array([backward_s]), "update": np.array([update_s])}
    for phase in totals:
        drawn = [(use.piece, use.number * _drawn(use, times, clock)) for use in brick_uses if use.phase == phase]
        in_graph = {piece: each for piece, each in drawn if piece is not None}
        if is_path:
            totals[phase] = totals[phase] + _longest(composition, in_graph)
        for piece, each in drawn:
            if piece is None or not is_path:
                totals[phase] = totals[phase] + each
    return totals | {"all": np.asarray(sum(totals.values()))}


def _longest(composition: Composition, by_piece: Mapping[int, Values]) -> Values:
    """Return the length of the longest path through the graph, for each draw separately; backward has equal edges."""
    ends: list[Values] = []
    for number, piece in enumerate(composition.pieces):
        before = {source[0] for source in piece.inputs if source is not None}.union(piece.after)
        begin = reduce(np.maximum, (ends[source] for source in before), np.zeros(1))
        ends.append(begin + by_piece.get(number, np.zeros(1)))
    return reduce(np.maximum, ends, np.zeros(1))


def _drawn(use: Use, times: BrickTimes, clock: str) -> Values:
    """Return the median time and draws of one use; for a backward pass, without the overhead of its start."""
    drawn = times.drawn(use.brick, use.timed_as, clock)
    return np.maximum(drawn - times.start_s("backward_start_s", clock), 0.0) if use.starts_backward else drawn


def _row(strategy: str, phase: str, drawn: Values | None, reason: str | None = None) -> dict[str, object]:
    """Return a row of the table `constructions`."""
    low, high = (None if drawn is None else interval(drawn)) or (None, None)
    return {"strategy": strategy, "phase": phase, "latency_s": None if drawn is None else float(drawn[0]),
            "low_s": low, "high_s": high, "reason": reason}  # fmt: skip


def _piece_rows(brick_uses: Sequence[Use], times: BrickTimes, clock: str | None) -> Rows:
    """Return the rows of the table `pieces`, with all available times even if the model has no latency."""
    rows = []
    for use in brick_uses:
        known, time_s = times.bricks.get(use.brick, {}), None
        own_clock = clock or next(iter(times.clocks), None)
        if own_clock is not None and times.has(use.brick, use.timed_as):
            time_s = float(_drawn(use, times, own_clock)[0]) * use.number
        rows.append({"piece": use.piece, "brick": use.brick, "num_layers": known.get("num_layers"),
                     "layer_types": known.get("layer_types"), "phase": use.phase, "time_s": time_s,
                     "num_uses_here": use.number,
                     "method": None if time_s is None else times.method(use.brick)})  # fmt: skip
    return rows


def constructed_case(construction: Construction, correction: Correction | str) -> tuple[CaseEntry, dict[str, Rows]]:
    """Return the arguments of `RunWriter.add_case` for a constructed model: its entry, and rows by table.

    `correction` is the one that was applied, or the reason why there is none.
    """
    composition, times = construction.composition, construction.times
    timed, facts, ok = times.case, times.facts, construction.reason is None
    start_s = None
    if construction.clock is not None and construction.num_backward_starts:
        start_s = times.start_s("backward_start_s", construction.clock)
    of_model = ConstructPass(
        "ok" if ok else "failed", construction.reason, brick_run=times.run.run_id, brick_case=timed.case,
        timing_method=facts.method, g=composition.g, cut_method=composition.method, suite_digest=facts.suite_digest,
        num_rounds=facts.num_rounds, num_repeats=times.num_repeats, timed_s=facts.timed_s, set_up_s=facts.set_up_s,
        num_pieces=len(composition.pieces), num_bricks=len({piece.brick for piece in composition.pieces}),
        num_layers=composition.num_layers, num_module_calls=composition.num_module_calls,
        captured_by=composition.captured_by, clock=construction.clock, backward_start_s=start_s,
        correction=None if isinstance(correction, str) else msgspec.structs.asdict(correction),
        correction_reason=correction if isinstance(correction, str) else None)
    entry = CaseEntry(
        f"{composition.case}-{timed.device.replace(':', '')}", "ok" if ok else "error", workload=composition.model,
        variant=composition.variant or "", input_kind=composition.facts.get("input_kind"),
        input_size=composition.input_size, batch_size=composition.batch_size, mode=composition.mode,
        precision=composition.precision, device=timed.device, device_name=timed.device_name, data="synthetic",
        num_parameters=composition.num_parameters, source=composition.facts.get("source"), reason=construction.reason,
        passes=Passes(construct=of_model))
    return entry, {"pieces": construction.pieces, "constructions": construction.latencies}
