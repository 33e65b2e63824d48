"""How near constructed latencies come to measured ones, and what timing bricks in place of models saves.

Run `python benchmarks/bricks.py`, with `--g 1,2,4`, `--batch-size 8`, `--mode train`, `--families charact`, `--every 4`
for a quarter of the models, `--method paper` for warm bricks. torchvision, timm and transformers take part where they
are installed. In each round over the bricks every model of a group runs as well, spread evenly among them, so that what
slows the machine for minutes slows both. The correction is learned on at most 8 models, none of those held out.
"""

import os

os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "1000000")  # models are captured before bricks are timed

import charact.measure  # noqa: F401  (quiets torch, so it comes first)

# isort: split
import argparse
import itertools
import json
import resource
import statistics
import tempfile
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from brick_zoo import Member, members

from charact.analysis.bricks.construction import Construction, construct
from charact.analysis.bricks.correction import fit_correction
from charact.analysis.bricks.times import BrickTimes
from charact.bricks.capture import capture
from charact.bricks.composition import Composition, Configuration
from charact.bricks.suite import Suite
from charact.bricks.suite_writer import CutModel, add_models, cut_model
from charact.errors import UserError
from charact.measure.brick_choice import left_out
from charact.measure.brick_memory import as_stored
from charact.measure.brick_rounds import Rounds
from charact.measure.brick_settings import brick_settings
from charact.measure.loop import Loop
from charact.measure.timing import StopRule
from charact.store import Rows, load_run
from charact.writer import RunWriter

CPU = torch.device("cpu")
NUM_CALIBRATION = 8
AT_HOME_ITERATIONS = 10
"""Untimed iterations at a model's turn: caches keep what was read several times, and other models ran between."""
AT_HOME_S = 0.1
"""A model that takes longer is too large for caches to keep: one is enough, once it has all of its memory again."""
FEW_PAGES = 256
"""An iteration that asks the system for no more of them has found its memory among what others gave back."""


@dataclass
class Measured:
    """A model: how it is cut, and how long it takes by itself."""

    member: Member
    by_g: dict[int, CutModel]
    seconds: list[float] = field(default_factory=list)
    set_up_s: float = 0.0

    @property
    def name(self) -> str:
        """Name and variant."""
        return self.member.source.id

    @property
    def composition(self) -> Composition:
        """Any of its compositions."""
        return next(iter(self.by_g.values())).composition


def captured(chosen: list[Member], g_values: list[int], method: str) -> list[Measured]:
    """Every model that can be captured; what stops the others is said."""
    found = []
    for member in chosen:
        source = member.source
        try:
            model = capture(source)
        except UserError as error:
            print(f"left out: {error}", flush=True)
            continue
        case = source.case
        what = Configuration(source.id, source.name, source.variant, case.input_size, case.batch_size, case.mode,
                             case.precision)
        found.append(Measured(member, {g: cut_model(model, what, g, method) for g in g_values}))
        if notes := [note for note in model.notes if "differ" in note]:
            print(f"{source.id}: {notes[0]}", flush=True)
    return found


def groups(models: list[Measured], most_bytes: float) -> list[list[Measured]]:
    """Models whose weights together are no larger."""
    found: list[list[Measured]] = [[]]
    held = 0.0
    for model in models:
        held += model.composition.weights_bytes
        if held > most_bytes and found[-1]:
            found.append([])
            held = model.composition.weights_bytes
        found[-1].append(model)
    return found


def measure(models: list[Measured], suites: dict[int, Suite], num_rounds: int, group_bytes: float, *, infers: bool,
            warm: bool) -> dict[int, Rounds]:
    """Rounds over the bricks with iterations of the models between them, shared evenly by the groups of models.

    Bricks that are to be warm are not visited between models, but each repeated by itself afterwards.
    """
    parts = groups(models, group_bytes)
    rounds: dict[int, Rounds] = {}
    prepared_s: dict[int, float] = {}
    for number, part in enumerate(parts):
        loops = [_loop(model) for model in part]
        with torch.inference_mode() if infers else nullcontext():
            for g, suite in (suites if not rounds else {}).items():
                begun = time.perf_counter()
                bricks = [suite.brick(name) for name in sorted(suite.bricks)]
                rounds[g] = Rounds(bricks, CPU, training=not infers, before={})
                prepared_s[g] = time.perf_counter() - begun
        for turn in range(max(1, round(num_rounds / len(parts)))):
            with torch.inference_mode() if infers else nullcontext():
                _turn(part, loops, [] if warm else list(rounds.values()))
            print(f"  group {number + 1} of {len(parts)} ({len(part)} models): turn {turn + 1}", flush=True)
        del loops
    for g, each in rounds.items():
        each.facts["prepared_s"] = prepared_s[g]
        with torch.inference_mode() if infers else nullcontext():
            for brick in each.left if warm else ():
                each.repeat_warm(brick, StopRule(0.02, num_rounds, 600.0))
    return rounds


def _turn(models: list[Measured], loops: list[Loop], rounds: list[Rounds]) -> None:
    """A visit of every model and of every brick, the models spread evenly among the bricks."""
    left = list(zip(models, loops, strict=True))[::-1]
    num_models, num_bricks = len(left), sum(len(each.left) for each in rounds)
    visits = itertools.count(1)

    def models_that_are_due() -> None:
        due = num_models * next(visits) / num_bricks
        while num_models - len(left) < int(due):
            _iterate(*left.pop())

    for each in rounds:
        each.round(models_that_are_due)
    while left:
        _iterate(*left.pop())


def _loop(model: Measured) -> Loop:
    begun = time.perf_counter()
    loop = Loop(model.member.source.case)
    batch = loop.next_batch()
    loop.close()
    loop.feed(itertools.repeat(batch))
    for _ in range(2):
        loop.iteration(lambda phase: nullcontext())
    model.set_up_s += time.perf_counter() - begun
    return loop


def _iterate(model: Measured, loop: Loop) -> None:
    """Iterations to be at home again, as many as memory and a small model's caches need, and two that are timed."""
    begun = time.perf_counter()
    for _ in range(AT_HOME_ITERATIONS):
        before = _num_new_pages()
        loop.iteration(lambda phase: nullcontext())
        if time.perf_counter() - begun > AT_HOME_S and _num_new_pages() - before <= FEW_PAGES:
            break
    model.set_up_s += time.perf_counter() - begun
    for _ in range(2):
        begun = time.perf_counter()
        loop.iteration(lambda phase: nullcontext())
        model.seconds.append(time.perf_counter() - begun)


def _num_new_pages() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def times_of(suite: Suite, rounds: Rounds, mode: str, method: str, out: Path, left_out: Rows) -> BrickTimes:
    """The rounds as the record of a suite's run, without those of bricks that are left out."""
    names = {row["brick"] for row in left_out}
    case = f"bricks-{suite.name}"
    writer = RunWriter(out, case, {"command_line": [], "options": {}})
    for brick in rounds.left:
        rounds.rows[brick]["status"] = "ok"
    rows = [as_stored(row) for row in rounds.rows.values() if row["brick"] not in names]
    facts = {**rounds.facts, "status": "ok", "reason": None, "method": method, "suite": suite.name, "g": suite.g}
    writer.add_case(
        {"case": case, "workload": "bricks", "variant": suite.name, "mode": mode, "precision": "fp32", "device": "cpu",
         "input_size": None, "batch_size": None, "num_parameters": None, "status": "ok", "reason": None,
         "passes": {"bricks": facts}},
        {"bricks": [*rows, *left_out], "brick_times": [row for row in rounds.times if row["brick"] not in names]})
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
    calibration = _spread([number for number in range(len(kept)) if not held_out[number]], measured)
    correction = fit_correction([kept[number][1] for number in calibration], measured[calibration].tolist())
    latencies = [construct(each.composition, each.times, correction).latencies for _, each in kept]
    corrected = np.array([next(row["latency_s"] for row in rows if row["strategy"] == "corrected") or np.nan
                          for rows in latencies], dtype=float) / measured
    noise = [abs(statistics.median(model.seconds[::2]) / statistics.median(model.seconds[1::2]) - 1)
             for model, _ in kept]
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
    each_s = with_set_up + sum(model.set_up_s / (len(model.seconds) / 2) for model, _ in kept) / 2
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


def _spread(numbers: list[int], measured: Any) -> list[int]:
    """At most 8 of them, from short to long."""
    ordered = sorted(numbers, key=lambda number: measured[number])
    count = min(NUM_CALIBRATION, len(ordered))
    return [ordered[round(place * (len(ordered) - 1) / max(1, count - 1))] for place in range(count)]


def main() -> None:
    """Measure models and bricks by turns, and hold the one against the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--g", default="1,2,4")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--mode", default="infer")
    parser.add_argument("--cut", default=None)
    parser.add_argument("--method", default="contextual")
    parser.add_argument("--share", default=[1.0], type=lambda text: [float(each) for each in text.split(",")],
                        help="of the bricks whose times are used; those of the others are predicted: 1,0.3,0.2")
    parser.add_argument("--families", default="charact,torchvision,timm,transformers")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--group-bytes", type=float, default=1e10, help="weights of models that are there at once")
    parser.add_argument("--largest-weights", type=float, default=2.2e8, help="bytes; larger models are left out")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=None, help="a JSON file of all models' figures")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    method = asked.cut or ("heavy" if asked.mode == "train" else "chains")
    g_values = [int(g) for g in asked.g.split(",")]
    begun = time.perf_counter()
    chosen = members(asked.batch_size, asked.mode, set(asked.families.split(",")))[::asked.every]
    models = [model for model in captured(chosen, g_values, method)
              if model.composition.weights_bytes <= asked.largest_weights]
    print(f"torch {torch.__version__}, {asked.threads} threads, {asked.mode}, batch {asked.batch_size}, cut {method}: "
          f"{len(models)} models captured in {time.perf_counter() - begun:.0f} s", flush=True)
    with tempfile.TemporaryDirectory() as folder, brick_settings("fp32"):
        suites = {g: add_models(Path(folder, f"g{g}"), [model.by_g[g] for model in models], g, method,
                                torch.__version__).suite for g in g_values}
        rounds = measure(models, suites, asked.rounds, asked.group_bytes, infers=asked.mode == "infer",
                         warm=asked.method == "paper")
        figures = []
        for g, suite in suites.items():
            if asked.share != [1.0]:
                with torch.inference_mode():
                    rounds[g].describe()
            for share in asked.share:
                words = asked.method if share == 1 else f"{asked.method}, {share:.0%} of the bricks timed"
                left = [] if share == 1 else not_timed(suite, models, g, share)
                times = times_of(suite, rounds[g], asked.mode, asked.method, Path(folder), left)
                constructions = [construct(model.by_g[g].composition, times, "none yet") for model in models]
                figures += report(g, models, constructions, rounds[g], words)
    if asked.out is not None:
        asked.out.write_text(json.dumps(figures, indent=1))
    print(f"in all {time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main()
