"""Records to be compared: of one case whose times scatter, and of cases without any table."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from charact.analysis.compare import Group
from charact.record.reader import Run, load_run
from support.records import TRAIN_PHASES, case_entry, case_tables, manifest, publish

CASE = "resnet50-32-b8-train-fp32-cpu"
PUBLISHED = ("reference:northeastern-k80", "reference:northeastern-p100")


def scattered(out: Path, slowness: Mapping[str, float] | None = None, *, seed: int = 0, noise_frac: float = 0.01,
              activations: float = 1.0, num_iterations: int = 60, **changes: object) -> Run:
    """A profile of 60 iterations of 100 ms, whose phases take `slowness` times as long and scatter by `noise_frac`."""
    generator = random.Random(seed)
    phases = {phase: seconds * (slowness or {}).get(phase, 1.0) for phase, seconds in TRAIN_PHASES.items()}
    tables = case_tables("train", 32)
    tables["iterations"] = [
        {"iteration": number, "phase": phase, "host_s": seconds * max(generator.gauss(1, noise_frac), 0.1),
         "device_s": None} for number in range(num_iterations) for phase, seconds in phases.items()
    ]  # fmt: skip
    for row in tables["operators"]:
        row["self_host_s"] *= (slowness or {}).get(row["phase"], 1.0)
    for row in tables["memory"]:
        row["bytes"] *= activations if row["category"] == "activations" else 1.0
    entry = case_entry("resnet50", 32, "train")
    entry["passes"]["operators"]["phase_s"] = {phase: 1.04 * seconds for phase, seconds in phases.items()}
    return load_run(publish(out, "resnet50", manifest("profile", "resnet50") | changes, (entry, tables)))


def side(label: str, *runs: Run) -> Group:
    return Group(label, runs)


def record(out: Path, *entries: dict[str, Any], **changes: Any) -> Run:
    return load_run(publish(out, "some", manifest("profile") | changes, *((entry, {}) for entry in entries)))


def on_device(entry: dict[str, Any], device: str) -> dict[str, Any]:
    return entry | {"case": entry["case"].removesuffix("cpu") + device.replace(":", ""), "device": device}
