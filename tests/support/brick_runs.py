"""Runs of suites with known times, and compositions of their bricks."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from charact.bricks.suite.composition import Composition, PlacedBrick
from charact.record.reader import Run, load_run
from support.records import manifest, publish

Row = dict[str, Any]
Times = Mapping[str, float | Sequence[float]]

CASE = "bricks-zoo-g1-infer-fp32-cpu"
NUM_ROUNDS = 9


def brick_row(brick: str, **facts: Any) -> Row:
    """A row of the table `bricks`: a convolution that gives 1,000 bytes and holds 1,500 at most."""
    return {"brick": brick, "kind": "sequence", "num_layers": 1, "layer_types": json.dumps(["conv2d"]),
            "input_shapes": "[[1, 3, 8, 8]]", "literals": "[]", "status": "ok", "reason": None, "flop": 1e6,
            "bytes": 1e4, "weights_bytes": 400.0, "outputs_bytes": 1000.0, "saved_bytes": None, "held": None,
            "peak_bytes": 1500.0, "num_rounds": NUM_ROUNDS, "set_up_s": 0.001, **facts}  # fmt: skip


def time_rows(brick: str, phase: str, times_s: float | Sequence[float], device_s: float | None = None) -> list[Row]:
    """Rows of the table `brick_times`: the same time in each round, or what is given of each."""
    each = [times_s] * NUM_ROUNDS if isinstance(times_s, float) else times_s
    return [{"brick": brick, "phase": phase, "round": number, "call": 0, "num_calls": 1, "host_s": host_s,
             "device_s": device_s}
            for number, host_s in enumerate(each)]  # fmt: skip


def brick_run(out: Path, times: Mapping[str, Times], *, rows: Mapping[str, Row] | None = None, mode: str = "infer",
              facts: Row | None = None, device_s: Mapping[str, float] | None = None) -> Run:
    """A run of a suite: the times of each brick by phase, and what is otherwise in its row of the table `bricks`."""
    rows, on_device = rows or {}, device_s or {}
    case = CASE.replace("infer", mode)
    told = {"status": "ok", "reason": None, "method": "contextual", "suite": "zoo", "suite_digest": "0" * 64, "g": 1,
            "cut_method": "chains", "num_rounds": NUM_ROUNDS, "ended_by": "precision", "timed_s": 2.0, "set_up_s": 0.5,
            "backward_start_s": None, "step_start_s": None, **(facts or {})}  # fmt: skip
    entry = {"case": case, "workload": "bricks", "variant": "zoo", "input_kind": None, "input_size": None,
             "batch_size": None, "mode": mode, "precision": "fp32", "device": "cpu", "device_name": "AMD EPYC",
             "data": "synthetic", "num_parameters": None, "source": None, "status": "ok", "reason": None,
             "requested_bytes": None, "passes": {"bricks": told}}  # fmt: skip
    return load_run(publish(out, "zoo", manifest("bricks"), (entry, {
        "bricks": [brick_row(brick, **rows.get(brick, {})) for brick in [*times, *(set(rows) - set(times))]],
        "brick_times": [row for brick, phases in times.items() for phase, each in phases.items()
                        for row in time_rows(brick, phase, each, on_device.get(brick))],
    })))  # fmt: skip


def infer_run(out: Path, times: Times, **others: Any) -> Run:
    return brick_run(out, {brick: {"forward": each} for brick, each in times.items()}, **others)


def composition(bricks: Sequence[str], edges: Sequence[Sequence[int]] | None = None, **facts: Any) -> Composition:
    """A model of these bricks: a chain, or with the pieces that each piece reads from."""
    sources = edges if edges is not None else [[number - 1] if number else [] for number in range(len(bricks))]
    pieces = tuple(PlacedBrick(brick, (*((source, 0) for source in read), None), ("features",))
                   for brick, read in zip(bricks, sources, strict=True))  # fmt: skip
    told: Row = {
        "case": "net-8-b1-infer-fp32", "model": "net", "variant": "cifar", "input_size": 8, "batch_size": 1,
        "mode": "infer", "precision": "fp32", "g": 1, "method": "chains",
        "num_parameters": 100, "num_layers": len(bricks), "num_module_calls": 10, "weights_bytes": 400,
        "updates": (), "gradient_sums": (), "outputs": ((len(bricks) - 1, 0),),
    }
    return Composition(**{**told, **facts}, pieces=pieces)


def skewed(generator: np.random.Generator, median_s: float, num_rounds: int = NUM_ROUNDS) -> list[float]:
    return (median_s * (1 + 0.02 * (generator.gamma(1.0, 1.0, num_rounds) - np.log(2)))).tolist()
