"""A small record with known numbers, written through the real store: what analyses and views are tested on."""

import copy
import json
from pathlib import Path
from typing import Any

from charact.record.in_progress import write_manifest
from charact.record.manifest import CaseEntry, typed_entry
from charact.record.reader import Run, load_run
from charact.record.schema import TABLES, Rows
from charact.record.writer import RunWriter
from support.kept import written_once

PROFILE_TABLES = sorted(set(TABLES) - {
    "kernels", "stages", "metrics", "fits", "problems", "repetitions", "bricks", "brick_times", "pieces",
    "constructions", "program_iterations", "serving_steps", "serving_kernels", "windows"})
"""Tables of a profile's record on a CPU."""

MACHINE: dict[str, Any] = {
    "hostname": "bench-1", "os": "Debian GNU/Linux 12", "kernel": "6.1.0", "architecture": "x86_64",
    "cpu": {"model": "AMD EPYC", "num_physical_cores": 2, "num_logical_cores": 2, "num_usable_cores": 2},
    "memory_bytes": 25_000_000_000, "gpus": [], "fingerprint": "0123456789ab",
}
SOFTWARE: dict[str, Any] = {
    "charact": "0.1.0", "python": "3.11.7", "torch": "2.13.0+cpu", "cuda": None, "cudnn": None,
    "git": {"commit": "0" * 40, "dirty": False}, "environment": {"OMP_NUM_THREADS": "2"},
}
OPTIONS: dict[str, Any] = {
    "data": "synthetic", "workers": 0, "seed": 0, "threads": 2, "channels_last": False,
    "precision_target_frac": 0.02, "max_iterations": 50, "max_seconds": 15.0,
}
# Seconds per phase of every iteration; they and `other` sum to the wall.
TRAIN_PHASES = {"data": 0.010, "forward": 0.030, "loss": 0.001, "backward": 0.050, "update": 0.008, "other": 0.001}
INFER_PHASES = {"data": 0.010, "forward": 0.025, "other": 0.001}


def case_entry(workload: str, input_size: int, mode: str, *, status: str = "ok", reason: str | None = None,
               batch_size: int = 8) -> dict[str, Any]:
    """An entry of the manifest as `charact profile` writes it."""
    phases = TRAIN_PHASES if mode == "train" else INFER_PHASES
    passes = {
        "timing": {"status": "ok", "reason": None, "num_iterations": 10, "num_warmup_iterations": 3,
                   "warmup_ended_by": "stable", "ended_by": "precision", "precision_target_frac": 0.02,
                   "interval_frac": 0.011},
        "operators": {"status": "ok", "reason": None, "num_iterations": 3, "iteration_s": 1.04 * sum(phases.values()),
                      "overhead_ratio": 1.04, "phase_s": {k: v * 1.04 for k, v in phases.items() if k != "other"}},
        "kernels": {"status": "skipped", "reason": "no CUDA device: kernels run on GPUs only"},
        "memory": {"status": "ok", "reason": None, "peak_bytes": 310_000_000, "reserved_peak_bytes": None,
                   "process_peak_bytes": 900_000_000},
        "flop": {"status": "ok", "reason": None, "uncounted": []},
    }
    if status != "ok":
        passes = {name: {"status": "skipped", "reason": reason} for name in passes}
    return {
        "case": f"{workload}-{input_size}-b{batch_size}-{mode}-fp32-cpu", "workload": workload, "variant": "imagenet",
        "input_kind": "image", "input_size": input_size, "batch_size": batch_size, "mode": mode, "precision": "fp32",
        "device": "cpu", "device_name": "AMD EPYC", "data": "synthetic", "num_parameters": 25_557_032,
        "source": "He et al. 2016", "status": status, "reason": reason,
        "requested_bytes": 64_000_000_000 if status == "oom" else None, "passes": passes,
    }


def case_tables(mode: str, input_size: int, layer: str = "layer1.0.conv1") -> dict[str, list[dict[str, Any]]]:
    """Rows of every table of one case."""
    phases = TRAIN_PHASES if mode == "train" else INFER_PHASES
    iterations = [
        {"iteration": i, "phase": phase, "host_s": seconds * (1 + 0.001 * i), "device_s": None}
        for i in range(10) for phase, seconds in phases.items()
    ]

    def operator(phase: str, name: str, kind: str, where: str | None, share: float, flop: float | None) -> dict:
        return {"phase": phase, "operator": name, "operator_type": kind, "layer": where,
                "input_shapes": f"[[8,3,{input_size},{input_size}]]", "num_calls": 1.0,
                "self_host_s": share * phases[phase], "device_s": None, "flop": flop,
                "bytes": None if flop is None else 4e6}

    operators = [
        operator("data", "aten::stack", "copy", None, 0.5, None),
        operator("forward", "aten::mkldnn_convolution", "convolution", layer, 0.7, 6.5e10),
        operator("forward", "aten::native_batch_norm", "normalization", "layer1.0.bn1", 0.2, None),
        operator("forward", "aten::strange", "other", "fc", 0.01, None),
    ]
    memory = {"weights": 1.02e8, "gradients": 1.02e8 if mode == "train" else 0.0,
              "optimizer_state": 1.02e8 if mode == "train" else 0.0, "activations": 1e3 * input_size**2,
              "temporary": 1e6, "input": 4.0 * 8 * 3 * input_size**2, "unknown": 0.0}
    if mode == "train":
        operators += [
            operator("loss", "aten::nll_loss", "loss", None, 0.8, None),
            operator("backward", "aten::mkldnn_convolution_backward", "convolution", layer, 0.9, 1.3e11),
            operator("update", "aten::_foreach_add_", "optimizer", None, 0.9, None),
        ]
    peak_phase = "backward" if mode == "train" else "forward"
    return {
        "iterations": iterations,
        "operators": operators,
        "memory": [
            {"kind": kind, "method": "measured", "phase": phase, "time_s": None, "category": category, "bytes": held}
            for kind, phase in [("peak", peak_phase), ("phase_peak", "forward"), ("phase_peak", peak_phase)][
                : 3 if mode == "train" else 2]
            for category, held in memory.items()
        ],
        "flop": [
            {"phase": row["phase"], "layer": row["layer"], "operator": "aten::convolution",
             "operator_type": row["operator_type"], "num_calls": 1, "flop": row["flop"], "bytes": row["bytes"]}
            for row in operators if row["flop"] is not None
        ],
        "layers": [{"layer": layer, "layer_type": "Conv2d", "num_parameters": 9408},
                   {"layer": "layer1.0.bn1", "layer_type": "BatchNorm2d", "num_parameters": 128},
                   {"layer": "fc", "layer_type": "Linear", "num_parameters": 2_049_000}],
        "counters": [{"phase": None, "time_s": None, "rank": 0, "device": "cpu", "source": "host",
                      "counter": "cpu_utilization_frac", "value": 0.93}],
    }


def manifest(*command: str) -> dict[str, Any]:
    """What every manifest of a command holds."""
    return {
        "command_line": ["charact", *command], "started": "2026-11-21T10:00:00+0000",
        "machine": copy.deepcopy(MACHINE), "software": copy.deepcopy(SOFTWARE), "options": copy.deepcopy(OPTIONS),
    }


def publish(out: Path, name: str, facts: dict[str, Any],
            *cases: tuple[dict[str, Any] | CaseEntry, dict[str, Rows]]) -> Path:
    """A published run below `out` with these facts in its manifest, and an entry and tables for each case."""
    writer = RunWriter(out, name, facts)
    for entry, tables in cases:
        writer.add_case(entry if isinstance(entry, CaseEntry) else typed_entry(entry), tables)
    writer.close("complete")
    return writer.publish()


def run_of(out: Path, *cases: tuple[dict[str, Any] | CaseEntry, dict[str, Rows]], **facts: Any) -> Run:
    """The run of these entries and tables, with these facts in its manifest."""
    return load_run(publish(out, "r", facts, *cases))


@written_once
def write_record(out: Path, *, name: str = "resnet50", sizes: tuple[int, ...] = (32, 224),
                 modes: tuple[str, ...] = ("train", "infer"), layer: str = "layer1.0.conv1", oom: bool = False) -> Path:
    """A run of `charact profile`."""
    cases = [(case_entry(name, size, mode), case_tables(mode, size, layer)) for size in sizes for mode in modes]
    if oom:
        cases.append((case_entry(name, 4096, "train", status="oom", reason="out of memory: asked for 64.0 GB"), {}))
    return publish(out, name, manifest("profile", name, "--input-sizes", ",".join(map(str, sizes))), *cases)


def drop_table(record: Path, table: str) -> None:
    """Make a record that never held a table: its file and its name in the manifest go."""
    (record / f"{table}.parquet").unlink()
    manifest = json.loads((record / "run.json").read_text())
    manifest["tables"].remove(table)
    write_manifest(record, manifest)


def _stage(stage: str, number: int, phases: dict[str, float], num_iterations: int, num_samples: int) -> Rows:
    return [
        {"stage": stage, "number": number, "phase": phase, "host_s": seconds, "device_s": None,
         "num_iterations": num_iterations, "num_samples": num_samples} for phase, seconds in phases.items()
    ]


# Seconds per phase of every epoch's training (10 s), validation (2 s) and checkpointing (0.5 s).
EPOCH = {
    "training": {"data": 1.0, "forward": 3.0, "loss": 0.5, "backward": 4.0, "update": 1.0, "other": 0.5},
    "validation": {"data": 0.5, "forward": 1.0, "loss": 0.25, "other": 0.25},
    "checkpointing": {"other": 0.5},
}
ACCURACIES = [0.6, 0.8, 0.9, 0.96, 0.95]


def training_entry(name: str, batch_size: int, *, num_epochs: int = 5, until: float | None = 0.95) -> dict[str, Any]:
    """An entry of the manifest as `charact train` writes it."""
    reached = next((n for n in range(1, num_epochs + 1) if until is not None and ACCURACIES[n - 1] >= until), None)
    best = max(range(num_epochs), key=ACCURACIES.__getitem__, default=None)
    protocol = {"name": "northeastern", "source": "Doe et al. 2020, section 4", "unstated": "the seed",
                "changed": {"epochs": [10, 5], "input_sizes": [224, 32]}}
    return case_entry(name, 32, "train", batch_size=batch_size) | {"passes": {"training": {
        "status": "ok", "reason": None, "num_epochs_asked": 5, "num_epochs": num_epochs, "setup_s": 1.5,
        "until": None if until is None else {"metric": "accuracy", "value": until, "epoch": reached},
        "best": None if best is None else {"metric": "accuracy", "value": ACCURACIES[best], "epoch": best + 1},
        "num_train_samples": 8000, "num_valid_samples": 2000, "num_resumed": 0,
        "weights": f"weights/{name}.pt", "protocol": protocol,
    }}}  # fmt: skip


def training_tables(batch_size: int, *, num_epochs: int = 5, slowness: float = 1.0) -> dict[str, Rows]:
    """Rows of `stages` and `metrics`; in epoch n the training's loss is 2 / n and the validation's 2.4 / n."""
    stages: Rows = []
    metrics: Rows = []
    for epoch in range(1, num_epochs + 1):
        for stage, phases in EPOCH.items():
            num_samples = {"training": 8000, "validation": 2000, "checkpointing": 0}[stage]
            scaled = {phase: slowness * seconds for phase, seconds in phases.items()}
            stages += _stage(stage, epoch, scaled, num_samples // batch_size, num_samples)
        for stage, loss, accuracy in [("training", 2.0, ACCURACIES[epoch - 1] - 0.02),
                                      ("validation", 2.4, ACCURACIES[epoch - 1])]:  # fmt: skip
            metrics += [
                {"stage": stage, "number": epoch, "metric": metric, "value": value, "reason": None}
                for metric, value in [("loss", loss / epoch), ("accuracy", accuracy)]
            ]
    return {"stages": stages, "metrics": metrics}


@written_once
def write_training(out: Path, *, name: str = "resnet18", diverged: bool = True, until: float | None = 0.95) -> Path:
    """A run of `charact train`: batch sizes 10 and 20 over 5 epochs, the second twice as slow, and 40, lost in epoch 3.

    Total execution time is 62.5 and 125 s; 95 % is reached in epoch 4, after 49.5 and 99 s.
    """
    cases = [(training_entry(name, batch_size, until=until), training_tables(batch_size, slowness=slowness))
             for batch_size, slowness in [(10, 1.0), (20, 2.0)]]
    if diverged:
        entry = training_entry(name, 40, num_epochs=2, until=until)
        reason = "the loss was nan in iteration 17 of epoch 3"
        entry["passes"]["training"] |= {"status": "failed", "reason": reason}
        cases.append((entry | {"status": "diverged", "reason": reason}, training_tables(40, num_epochs=2)))
    return publish(out, name, manifest("train", name), *cases)


def inference_entry(name: str, batch_size: int) -> dict[str, Any]:
    """An entry of the manifest as `charact infer` writes it."""
    return case_entry(name, 32, "infer", batch_size=batch_size) | {"passes": {"inference": {
        "status": "ok", "reason": None, "weights": f"weights/{name}.pt", "weights_bytes": 45_000_000,
        "cold_reason": None, "num_samples": 100 * batch_size, "num_batches": 100, "setup_s": 0.5,
    }}}  # fmt: skip


def inference_tables(batch_size: int) -> dict[str, Rows]:
    """Rows of an inference: a cold load of 0.6 s, warm ones of 0.2, 0.21 and 0.22 s, batches of 1, 2, ... 100 ms."""
    walls = [0.001 * number for number in range(1, 101)]
    shares = {"data": 0.1, "forward": 0.8, "other": 0.1}
    stages = _stage("load_cold", 1, {"build": 0.1, "read": 0.4, "place": 0.1}, 0, 0)
    for number in range(1, 4):
        stages += _stage("load_warm", number, {"build": 0.1, "read": 0.04 + 0.01 * number, "place": 0.05}, 0, 0)
    prediction = {phase: share * sum(walls) for phase, share in shares.items()}
    return {
        "stages": stages + _stage("prediction", 1, prediction, 100, 100 * batch_size),
        "iterations": [{"iteration": number, "phase": phase, "host_s": share * wall_s, "device_s": None}
                       for number, wall_s in enumerate(walls) for phase, share in shares.items()],
        "metrics": [{"stage": "prediction", "number": 1, "metric": metric, "value": value, "reason": None}
                    for metric, value in [("loss", 0.25), ("accuracy", 0.93)]],
    }  # fmt: skip


@written_once
def write_inference(out: Path, *, name: str = "resnet18") -> Path:
    cases = [(inference_entry(name, batch_size), inference_tables(batch_size)) for batch_size in (1, 8)]
    return publish(out, name, manifest("infer", name), *cases)


def watched_rows() -> Rows:
    """Iterations of two models: 4 of 100 ms, then one of 150 ms in which G rests and a loss takes 5 ms."""
    def rows(number: int, times: dict[tuple[str, str | None], float]) -> Rows:
        return [{"iteration": number, "phase": phase, "part": part, "host_s": seconds, "device_s": None}
                for (phase, part), seconds in times.items()]

    both = {("data", None): 0.010, ("forward", "netD"): 0.020, ("forward", "netG"): 0.010,
            ("backward", "netD"): 0.025, ("backward", "netG"): 0.015, ("update", "netD"): 0.006,
            ("update", "netG"): 0.004, ("other", None): 0.010}
    one = {("data", None): 0.010, ("forward", "netD"): 0.020, ("loss", "netD"): 0.005, ("backward", "netD"): 0.050,
           ("update", "netD"): 0.010, ("other", None): 0.055}
    return [row for number in range(4) for row in rows(number, both)] + rows(4, one)


def watched_entry(name: str = "gan", **changes: Any) -> dict[str, Any]:
    """An entry of the manifest as `charact run --sample` writes it of a program that tells no sizes."""
    return {
        "case": f"{name}-train", "workload": name, "variant": "", "input_kind": None, "input_size": None,
        "batch_size": None, "mode": "train", "precision": "as written", "device": "cpu", "device_name": None,
        "data": "as written", "num_parameters": None, "source": f"{name}.py", "status": "ok", "reason": None,
        "requested_bytes": None,
        "passes": {
            "timing": {"status": "ok", "reason": None, "num_warmup_iterations": 1, "warmup_ended_by": "number",
                       "num_iterations": 5, "ended_by": "program", "precision_target_frac": None,
                       "interval_frac": None, "median_s": 0.1, "attributed_frac": 0.95, "inferred_frac": 0.02,
                       "compile_s": None},
            "frames": {"status": "ok", "reason": None, "interval_s": 0.01, "num_samples": 40, "frames": [
                {"place": "gan.py:12", "function": "save", "library": "torch.serialization.save", "num_samples": 30},
                {"place": "gan.py:<40>", "function": "<module>", "library": None, "num_samples": 8},
            ]},
        },
    } | changes


def write_watched(out: Path, *, name: str = "gan", rows: Rows | None = None, **changes: Any) -> Path:
    """A run of `charact run --sample` on a program with two models that tells neither input nor batch size."""
    described = manifest("run", f"{name}.py") | {
        "options": {"script": f"{name}.py", "arguments": ["--lr", "<0.1>"], "skip": None, "iterations": None,
                    "passes": []},
        "ending": "sys.exit(3)",
    }  # fmt: skip
    tables = {"iterations": watched_rows() if rows is None else rows}
    return publish(out, name, described, (watched_entry(name, **changes), tables))
