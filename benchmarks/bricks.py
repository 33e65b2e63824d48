"""How near constructed latencies come to measured ones, and what timing bricks in place of models saves.

Run `python benchmarks/bricks.py`, with `--g 1,2,4`, `--batch-size 8`, `--mode train`, `--families charact`, `--every 4`
for a quarter of the models. torchvision, timm and transformers take part where they are installed. In each round over
the bricks every model of a group runs as well, spread evenly among them, so that what slows the machine for minutes
slows both; a second report holds them against one another at the machine's usual pace, see `brick_pace.py`. The
correction is learned on at most 8 models, none of those held out.
"""

import os

os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "1000000")  # models are captured before bricks are timed

import charact.measure  # noqa: F401  (quiets torch, so it comes first)

# isort: split
import argparse
import itertools
import json
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from brick_models import Measured, captured, groups, iterate, loop_of
from brick_pace import Pace
from brick_report import not_timed, report, times_of
from brick_zoo import members

from charact.bricks.analysis.construction import construct
from charact.bricks.suite.suite import Suite, add_models
from charact.bricks.timing.rounds import Rounds, rotated
from charact.bricks.timing.suite_run import brick_settings
from charact.execution.loop import Loop

CPU = torch.device("cpu")


def measure(models: list[Measured], suites: dict[int, Suite], num_rounds: int, group_bytes: float, *, infers: bool
            ) -> dict[int, Rounds]:
    """Rounds over the bricks with iterations of the models between them, shared evenly by the groups of models."""
    parts = groups(models, group_bytes)
    rounds: dict[int, Rounds] = {}
    prepared_s: dict[int, float] = {}
    for number, part in enumerate(parts):
        loops = [loop_of(model) for model in part]
        with torch.inference_mode() if infers else nullcontext():
            for g, suite in (suites if not rounds else {}).items():
                begun = time.perf_counter()
                bricks = [suite.brick(name) for name in sorted(suite.bricks)]
                rounds[g] = Rounds(bricks, CPU, training=not infers, before={})
                prepared_s[g] = time.perf_counter() - begun
        num_turns = max(1, round(num_rounds / len(parts)))
        for turn in range(num_turns):
            with torch.inference_mode() if infers else nullcontext():
                _turn(number * num_turns + turn, part, loops, list(rounds.values()))
            print(f"  group {number + 1} of {len(parts)} ({len(part)} models): turn {turn + 1}", flush=True)
        del loops
    for g, each in rounds.items():
        each.facts["prepared_s"] = prepared_s[g]
    return rounds


def _turn(turn: int, models: list[Measured], loops: list[Loop], rounds: list[Rounds]) -> None:
    """A visit of every model and of every brick, the models spread evenly among the bricks."""
    left = rotated(list(zip(models, loops, strict=True)), turn)[::-1]
    num_models, num_bricks = len(left), sum(len(each.left) for each in rounds)
    num_before = itertools.count()

    def models_that_are_due() -> None:
        place = next(num_before)
        due = num_models * (place + 1) / num_bricks
        while num_models - len(left) < int(due):
            iterate(*left.pop(), (turn, place))

    for each in rounds:
        each.round(models_that_are_due)
    while left:
        iterate(*left.pop(), (turn, num_bricks))


def main() -> None:
    """Measure models and bricks by turns, and hold the one against the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--g", default="1,2,4")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--mode", default="infer")
    parser.add_argument("--cut", default=None)
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
        rounds = measure(models, suites, asked.rounds, asked.group_bytes, infers=asked.mode == "infer")
        figures = []
        pace = Pace(rounds)
        views = [("as measured", models, {g: each.times for g, each in rounds.items()}),
                 ("at the usual pace", [pace.model(model) for model in models],
                  {g: pace.bricks(g, each.times) for g, each in rounds.items()})]
        print(f"the machine's pace varied by {pace.spread:.1%}")
        for g, suite in suites.items():
            if asked.share != [1.0]:
                with torch.inference_mode():
                    rounds[g].describe()
            for share, (words, viewed, times) in itertools.product(asked.share, views):
                left = [] if share == 1 else not_timed(suite, models, g, share)
                found = times_of(suite, rounds[g], times[g], asked.mode, Path(folder), left)
                constructions = [construct(model.by_g[g].composition, found, "none yet") for model in viewed]
                figures += report(g, viewed, constructions, rounds[g],
                                  words if share == 1 else f"{words}, {share:.0%} of the bricks timed")
    if asked.out is not None:
        asked.out.write_text(json.dumps(figures, indent=1))
    print(f"in all {time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main()
