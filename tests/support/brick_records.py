"""Records of bricks with known numbers: runs of a suite, and models that were constructed, through the real writer."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from charact.record.manifest import typed_entry
from charact.record.reader import Run, load_run
from charact.record.writer import RunWriter
from support.records import manifest, publish

Row = dict[str, Any]

ROUNDS = (0.98, 0.99, 1.0, 1.0, 1.0, 1.01, 1.02)
"""Times of the rounds over their median, whose 95 % interval is from the least to the largest."""
BRICKS: dict[str, tuple[list[str], float]] = {
    "00aa": (["conv2d", "batch_norm"], 0.004), "11bb": (["linear"], 0.002), "22cc": (["relu"], 0.001),
    "33dd": (["conv2d", "batch_norm"], 0.003),
}  # fmt: skip
"""Layer types of bricks, and their times: 10 ms in all."""
FLOP = 1e8
"""Of each brick."""


def brick_row(brick: str, layer_types: Sequence[str], **facts: Any) -> Row:
    """A row of the table `bricks`: 100 MFLOP and 1 MB at the peak where nothing else is said."""
    return {"brick": brick, "kind": "sequence", "num_layers": len(layer_types), "layer_types": json.dumps(layer_types),
            "input_shapes": "[[1,64,56,56],[64,64,3,3]]", "literals": "[1,1]", "status": "ok", "reason": None,
            "flop": FLOP, "bytes": 2e6, "weights_bytes": 4e5, "outputs_bytes": 8e5, "saved_bytes": None, "held": None,
            "peak_bytes": 1e6, "num_rounds": len(ROUNDS), "set_up_s": 0.1, **facts}  # fmt: skip


def time_rows(brick: str, median_s: float, phase: str = "forward", rounds: Sequence[float] = ROUNDS) -> list[Row]:
    return [{"brick": brick, "phase": phase, "round": number, "call": 0, "num_calls": 1, "host_s": factor * median_s,
             "device_s": None} for number, factor in enumerate(rounds)]  # fmt: skip


def suite_entry(suite: str = "zoo", **changes: Any) -> Row:
    """An entry of the manifest as `charact bricks run` writes it."""
    return {
        "case": f"bricks-{suite}-g2-infer-fp32-cpu", "workload": "bricks", "variant": suite, "input_kind": None,
        "input_size": None, "batch_size": None, "mode": "infer", "precision": "fp32", "device": "cpu",
        "device_name": "AMD EPYC", "data": None, "num_parameters": None, "source": None, "status": "ok", "reason": None,
        "requested_bytes": None,
        "passes": {"bricks": {"status": "ok", "reason": None, "method": "contextual", "suite_digest": "0123456789",
                              "g": 2, "cut_method": "chains", "num_rounds": 7, "ended_by": "precision",
                              "timed_s": 0.07, "set_up_s": 0.4}},
        **changes,
    }  # fmt: skip


def suite_run(out: Path, bricks: Mapping[str, tuple[list[str], float]] = BRICKS, *, slowness: float = 1.0,
              failed: Sequence[Row] = (), **changes: Any) -> Run:
    """A run of a suite of these bricks; `failed` are rows of bricks without times."""
    rows = [brick_row(brick, layer_types) for brick, (layer_types, _) in bricks.items()]
    times = [row for brick, (_, time_s) in bricks.items() for row in time_rows(brick, slowness * time_s)]
    tables = {"bricks": [*rows, *failed], "brick_times": times}
    return load_run(publish(out, "bricks", manifest("bricks", "run", "zoo"), (suite_entry(**changes), tables)))


def model_entry(workload: str, *, status: str = "ok", reason: str | None = None, g: int = 2, **changes: Any) -> Row:
    """An entry of the manifest as `charact bricks construct` writes it."""
    facts = {"status": "ok" if status == "ok" else "failed", "reason": reason, "brick_run": "20261121-bricks",
             "timing_method": "contextual", "g": g, "cut_method": "chains", "num_rounds": 7, "num_repeats": 7,
             "set_up_s": 0.4, "timed_s": 0.07, "num_pieces": 4, "num_bricks": 3, "num_layers": 6}  # fmt: skip
    return {
        "case": f"{workload}-224-b1-infer-fp32-cpu", "workload": workload, "variant": "", "input_kind": "image",
        "input_size": 224, "batch_size": 1, "mode": "infer", "precision": "fp32", "device": "cpu",
        "device_name": "AMD EPYC", "data": "synthetic", "num_parameters": 1000, "source": None, "status": status,
        "reason": reason, "requested_bytes": None, "passes": {"construct": facts}, **changes,
    }  # fmt: skip


def latency_rows(plain_s: float | None, corrected_s: float | None = None, reason: str | None = None) -> list[Row]:
    """Rows of the table `constructions`: the critical path is nine tenths of the sum."""
    told: dict[str, float | None] = {"sequential": plain_s, "critical_path": plain_s and 0.9 * plain_s,
                                     "corrected": corrected_s}
    uncorrected = reason or (None if corrected_s else "no correction was learned on this machine")
    return [{"strategy": strategy, "phase": "all", "latency_s": latency_s,
             "low_s": latency_s and 0.99 * latency_s, "high_s": latency_s and 1.01 * latency_s,
             "reason": uncorrected if latency_s is None else None} for strategy, latency_s in told.items()]  # fmt: skip


def piece_rows(bricks: Sequence[str], slowness: float = 1.0) -> list[Row]:
    """Rows of the table `pieces`: bricks of `BRICKS` in the order that the model has them."""
    return [{"piece": number, "brick": brick, "num_layers": len(BRICKS[brick][0]),
             "layer_types": json.dumps(BRICKS[brick][0]), "phase": "forward", "time_s": slowness * BRICKS[brick][1],
             "num_uses_here": 1, "method": "measured"} for number, brick in enumerate(bricks)]  # fmt: skip


def measured_rows(median_s: float) -> list[Row]:
    return [{"iteration": number, "phase": "forward", "host_s": factor * median_s, "device_s": None}
            for number, factor in enumerate(ROUNDS)]  # fmt: skip


def memory_rows() -> list[Row]:
    return [{"kind": "peak", "method": "constructed", "phase": "forward", "category": category, "bytes": held}
            for category, held in {"weights": 2e6, "activations": 1e6}.items()]  # fmt: skip


class Models:
    """A record of constructed models that grows by one at a time."""

    def __init__(self, out: Path, name: str = "constructed") -> None:
        self.writer = RunWriter(out, name, manifest("bricks", "construct", "all"))

    def add(self, workload: str, bricks: Sequence[str], *, corrected: float | None = None,
            measured: float | None = None, slowness: float = 1.0, **changes: Any) -> "Models":
        """A model of these bricks; `corrected` and `measured` are what was found of it, over the plain sum."""
        pieces = piece_rows(bricks, slowness)
        plain_s = sum(row["time_s"] for row in pieces)
        tables = {"pieces": pieces, "constructions": latency_rows(plain_s, corrected and corrected * plain_s),
                  "iterations": measured_rows(measured * plain_s) if measured else [], "memory": memory_rows()}
        entry = model_entry(workload, **changes)
        if measured:
            entry["passes"]["timing"] = {"status": "ok", "reason": None}
        self.writer.add_case(typed_entry(entry), tables)
        return self

    def fail(self, workload: str, reason: str, **changes: Any) -> "Models":
        """A model that lacks the time of its brick 99ff."""
        lacking = {**piece_rows(["11bb"])[0], "brick": "99ff", "time_s": None, "num_layers": None, "layer_types": None}
        tables = {"pieces": [*piece_rows(["00aa"]), lacking], "constructions": latency_rows(None, reason=reason)}
        self.writer.add_case(typed_entry(model_entry(workload, status="error", reason=reason, **changes)), tables)
        return self

    def run(self) -> Run:
        self.writer.close("complete")
        return load_run(self.writer.publish())


def three_models(out: Path, **changes: Any) -> Run:
    """Two models that were measured, the second 20 % longer than its plain sum, and one that could not be built."""
    record = Models(out)
    record.add("resnet18", ["00aa", "22cc", "00aa", "11bb"], corrected=1.05, measured=1.0, **changes)
    record.add("vgg11", ["33dd", "22cc"], corrected=1.15, measured=1.25, **changes)
    return record.fail("hopeless", "the run lacks 1 of 2 segments (brick 99ff)", **changes).run()


def zoo(out: Path, num_models: int = 100) -> Run:
    """As many models as a study has, of long names, whose constructions scatter around what was measured."""
    record = Models(out, "zoo")
    order = list(BRICKS)
    for number in range(num_models):
        pieces = [order[(number * step) % len(order)] for step in range(1, 4 + number)]
        long = f"transformers.models.family{number}:ModelForSequenceClassificationOfLongName" if number % 3 else "net"
        record.add(f"{long}{number}", pieces, corrected=0.95 + 0.001 * number,
                   measured=(0.97 + 0.0037 * (number * 37 % 50)))  # fmt: skip
    return record.run()
