"""Records of one case whose times are told by phase and by operator, below ceilings of round numbers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from charact.record.reader import Run, load_run
from support.records import MACHINE, OPTIONS, SOFTWARE, case_entry, publish

Row = dict[str, Any]


def ceiling(kind: str, value: float, precision: str | None = None, *, device: str = "cpu", level: str | None = None,
            working_set_bytes: int | None = None) -> Row:
    """A row of the manifest's ceilings."""
    unit = {"gemm": "flop_per_s", "launch": "s"}.get(kind, "bytes_per_s")
    return {"device": device, "ceiling": kind, "precision": precision, "working_set_bytes": working_set_bytes,
            "level": level, "value": value, "low": 0.99 * value, "high": 1.01 * value, "unit": unit,
            "datasheet": None, "datasheet_source": None}  # fmt: skip


def ceilings_of(device: str) -> list[Row]:
    """1 TFLOP/s in fp32, 2 in bf16; 100 GB/s in memory, more in a cache; 10 µs a launch."""
    return [
        ceiling("gemm", 1e12, "fp32", device=device), ceiling("gemm", 2e12, "bf16", device=device),
        ceiling("copy", 9e10, device=device, level="memory", working_set_bytes=10**9),
        ceiling("triad", 1e11, device=device, level="memory", working_set_bytes=10**9),
        ceiling("copy", 4e11, device=device, level="L2", working_set_bytes=10**6),
        ceiling("launch", 1e-5, device=device),
    ]  # fmt: skip


CEILINGS = ceilings_of("cpu")


def operator(phase: str, kind: str, time_s: float, *, flop: float | None = None, num_bytes: float | None = None,
             num_calls: float = 1.0, layer: str | None = "net", device_s: float | None = None) -> Row:
    """A row of the table `operators`; its work stands in the table `flop`, too."""
    return {"phase": phase, "operator": f"aten::{kind}", "operator_type": kind, "layer": layer, "input_shapes": "[]",
            "num_calls": num_calls, "self_host_s": time_s, "device_s": device_s, "flop": flop,
            "bytes": num_bytes}  # fmt: skip


def judged(out: Path, phases: Mapping[str, float], operators: Sequence[Row] = (), *, on_device: bool = False,
           ceilings: Sequence[Row] = CEILINGS, profiled: Mapping[str, float] | None = None,
           counters: Sequence[Row] = (), kernels: Sequence[Row] = (), entry: Mapping[str, Any] | None = None,
           manifest: Mapping[str, Any] | None = None) -> Run:
    """The run of one case, by the seconds of each phase of each iteration, in the timing pass and under the profiler.

    `entry` and `manifest` are what differs; `passes`, `options` and `machine` in them are added to.
    """
    iterations = [
        {"iteration": number, "phase": phase, "part": None, "host_s": time_s, "device_s": time_s if on_device else None}
        for number in range(6) for phase, time_s in phases.items()
    ]  # fmt: skip
    changes, described = dict(entry or {}), dict(manifest or {})
    told = case_entry("net", 32, "train")
    told["passes"]["operators"]["phase_s"] = dict(phases if profiled is None else profiled)
    told |= changes | {"passes": told["passes"] | changes.get("passes", {})}
    flop = [{"phase": row["phase"], "layer": row["layer"], "operator": row["operator"], "num_calls": 1,
             "operator_type": row["operator_type"], "flop": row["flop"], "bytes": row["bytes"]}
            for row in operators if row["flop"] is not None or row["bytes"] is not None]
    return load_run(publish(out, "net", {
        "command_line": ["charact", "profile", "net"], "started": "2026-11-21T10:00:00+0000", "software": SOFTWARE,
        "ceilings": list(ceilings), "ceilings_reason": None, **described,
        "machine": MACHINE | described.get("machine", {}),
        "options": OPTIONS | {"compiled": False} | described.get("options", {}),
    }, (told, {"iterations": iterations, "operators": list(operators), "flop": flop, "counters": list(counters),
               "kernels": list(kernels)})))  # fmt: skip


def busy(others_cores: float, waiting_s: float, used_s: float = 10.0) -> dict[str, Any]:
    """10 s with 2 cores, of which the program used one."""
    use = {"length_s": 10.0, "num_usable_cores": 2, "processor_s": used_s, "others_s": 10 * others_cores,
           "waiting_s": waiting_s, "stolen_s": 0.0}
    return {"entry": {"passes": {"timing": {"status": "ok", "reason": None, "core_use": use}}}}


def counted(source: str, counter: str, value: float, *, phase: str | None = None, device: str = "cuda:0") -> Row:
    return {"phase": phase, "time_s": None, "rank": 0, "device": device, "source": source, "kernel": None,
            "counter": counter, "value": value}
