"""A small record with known numbers, written through the real store: what analyses and views are tested on."""

import copy
import json
from pathlib import Path
from typing import Any

from charact.store import RunWriter

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


def write_record(out: Path, *, name: str = "resnet50", sizes: tuple[int, ...] = (32, 224),
                 modes: tuple[str, ...] = ("train", "infer"), layer: str = "layer1.0.conv1", oom: bool = False) -> Path:
    """A published run directory below `out`."""
    manifest = {
        "command_line": ["charact", "profile", name, "--input-sizes", ",".join(map(str, sizes))],
        "started": "2026-11-21T10:00:00+0000", "machine": copy.deepcopy(MACHINE), "software": copy.deepcopy(SOFTWARE),
        "options": copy.deepcopy(OPTIONS),
    }
    writer = RunWriter(out, name, manifest)
    for size in sizes:
        for mode in modes:
            writer.add_case(case_entry(name, size, mode), case_tables(mode, size, layer))
    if oom:
        writer.add_case(case_entry(name, 4096, "train", status="oom", reason="out of memory: asked for 64.0 GB"), {})
    writer.close("complete")
    return writer.publish()


def drop_table(record: Path, table: str) -> None:
    """Make a record that never held a table: its file and its name in the manifest go."""
    (record / f"{table}.parquet").unlink()
    manifest = json.loads((record / "run.json").read_text())
    manifest["tables"].remove(table)
    (record / "run.json").write_text(json.dumps(manifest))
