"""How far constructed latencies are off, in print and as figures of each model."""

import math
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from brick_models import Measured

from charact.bricks.analysis.calibration import fit_correction, typical
from charact.bricks.analysis.construction import BrickTimes, Construction, construct
from charact.bricks.suite.suite import Suite
from charact.bricks.timing.rounds import Rounds
from charact.bricks.timing.suite_run import left_out
from charact.record.manifest import typed_entry
from charact.record.reader import Rows, load_run
from charact.record.writer import RunWriter

NUM_CALIBRATION = 8
"""Models, at most, that the correction is learned on."""


def times_of(suite: Suite, rounds: Rounds, times: Rows, mode: str, out: Path, left_out: Rows) -> BrickTimes:
    """The rounds' times as the record of a suite's run, without those of bricks that are left out."""
    names = {row["brick"] for row in left_out}
    case = f"bricks-{suite.name}"
    writer = RunWriter(out, case, {"command_line": [], "options": {}})
    for brick in rounds.left:
        rounds.rows[brick]["status"] = "ok"
    rows = [row for row in rounds.rows.values() if row["brick"] not in names]
    facts = {**rounds.facts, "status": "ok", "reason": None, "method": "contextual", "suite": suite.name, "g": suite.g,
             "cut_method": suite.method}
    writer.add_case(typed_entry(
        {"case": case, "workload": "bricks", "variant": suite.name, "mode": mode, "precision": "fp32", "device": "cpu",
         "input_size": None, "batch_size": None, "num_parameters": None, "status": "ok", "reason": None,
         "passes": {"bricks": facts}}),
        {"bricks": [*rows, *left_out], "brick_times": [row for row in times if row["brick"] not in names]})
    writer.close("complete")
    return BrickTimes(load_run(writer.publish()), case)


def not_timed(suite: Suite, models: list[Measured], g: int, share: float) -> Rows:
    """Bricks that `charact bricks run --share` leaves out."""
    uses = [Counter(piece.brick for piece in model.by_g[g].composition.pieces) for model in models]
    return left_out([suite.brick(name) for name in sorted(suite.bricks)], share, uses)


def report(g: int, models: list[Measured], constructions: list[Construction], rounds: Rounds, method: str) -> Any:
    """Print how far constructed latencies are off, and what they cost; returns the figures of each model."""
    bad = [each for each in constructions if each.sum_s is None]
    for each in bad:
        print(f"  not constructed: {each.composition.case}: {each.reason}")
    kept = [(model, each) for model, each in zip(models, constructions, strict=True) if each.sum_s is not None]
    measured = np.array([statistics.median(model.seconds) for model, _ in kept])
    plain = np.array([each.sum_s for _, each in kept]) / measured
    held_out = np.array([model.member.held_out for model, _ in kept])
    chosen = typical([each for model, each in kept if not model.member.held_out], NUM_CALIBRATION)
    calibration = [number for number, (_, each) in enumerate(kept) if any(each is one for one in chosen)]
    correction = fit_correction([kept[number][1] for number in calibration], measured[calibration].tolist())
    latencies = [construct(each.composition, each.times, correction).latencies for _, each in kept]
    corrected = np.array([next(row["latency_s"] for row in rows if row["strategy"] == "corrected") or np.nan
                          for rows in latencies], dtype=float) / measured
    noise = [_halves_differ(model) for model, _ in kept]
    num_pieces = sum(len(model.by_g[g].composition.pieces) for model, _ in kept)
    num_layers = sum(model.by_g[g].composition.num_layers for model, _ in kept)
    num_bricks = len({piece.brick for model, _ in kept for piece in model.by_g[g].composition.pieces})
    print(f"G = {g}, {method}: {len(kept)} models, {num_layers:,} layers, {num_pieces:,} pieces, {num_bricks:,} bricks "
          f"({num_bricks / num_pieces:.1%} unique); models' noise between halves {np.mean(noise):.1%}")
    others = np.setdiff1d(np.arange(len(kept)), calibration)
    for words, values, which in (
        ("plain sum, all", plain, np.arange(len(kept))), ("corrected, all but calibration", corrected, others),
        ("plain sum, held out", plain, np.flatnonzero(held_out)),
        ("corrected, held out", corrected, np.flatnonzero(held_out)),
    ):
        some = values[which]
        if some.size:
            print(f"  {words:32} {some.size:4} models: geometric mean {np.exp(np.log(some).mean()):.3f}, mean |error| "
                  f"{np.abs(some - 1).mean():.1%}, from {some.min():.3f} to {some.max():.3f}, within 10 %: "
                  f"{np.mean(np.abs(some - 1) <= 0.1):.0%}")
    run = constructions[0].times.run
    timed = run.table("brick_times")
    repeats = timed.groupby(["brick", "phase"])["host_s"]
    suite_s, calls = repeats.mean().sum(), repeats.size().median() / rounds.num_rounds
    visits_s = (timed["host_s"] * timed["num_calls"]).sum() / rounds.num_rounds + (
        rounds.facts["prepared_s"] + run.bricks["set_up_s"].sum()) / rounds.num_rounds
    with_set_up = sum(statistics.fmean(model.seconds) for model, _ in kept)
    each_s = with_set_up + sum(model.set_up_s / len(model.visits) for model, _ in kept) / 2
    print(f"  a round of the suite {visits_s:.2f} s, in which bricks are timed {calls:.0f} times; each brick once "
          f"{suite_s:.2f} s; an iteration of each model {with_set_up:.2f} s, {each_s:.2f} s with its set-up")
    print(f"  speedup at the same number of repeats: {with_set_up / suite_s:.2f}, set-up counted on both "
          f"sides {each_s / (visits_s / calls):.2f}")
    print(f"  correction: {correction}", flush=True)
    return [{"g": g, "method": method, "model": model.name, "family": model.member.family,
             "held_out": model.member.held_out, "measured_s": measured[number], "plain": plain[number],
             "corrected": corrected[number], "calibration": number in calibration,
             "num_module_calls": model.composition.num_module_calls, "noise": noise[number]}
            for number, (model, _) in enumerate(kept)]


def _halves_differ(model: Measured) -> float:
    """By how much a model's time in every other turn is off that in the turns between."""
    halves = [model.visits[first::2] for first in (0, 1)]
    even, odd = (statistics.median([seconds for visit in half for seconds in visit] or [math.nan]) for half in halves)
    return abs(even / odd - 1)
