"""Kernels from traces: a made one with known numbers, and a real one of an NVIDIA H100 where it is at hand."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from charact.measure.kernels import device_ns_by_operator, kernel_rows

TRACES = Path(__file__).parents[4] / "shared" / "traces"


def event(category: str, name: str, start: float, duration: float, **args: Any) -> dict[str, Any]:
    return {"cat": category, "name": name, "ts": start, "dur": duration, "ph": "X", "args": args}


TRACE = {"traceEvents": [
    {"ph": "M", "name": "process_name", "args": {"name": "python"}},
    event("user_annotation", "charact.phase:forward", 0, 100),
    event("user_annotation", "charact.phase:backward", 100, 100),
    event("cpu_op", "aten::addmm", 10, 20, **{"External id": 1}),
    event("cpu_op", "aten::mm", 110, 20, **{"External id": 2}),
    event("cuda_runtime", "cudaLaunchKernel", 12, 1, **{"External id": 1}),
    *(event("kernel", "gemm", start, 4.0, grid=[8, 1, 1], block=[256, 1, 1], **{
        "External id": 1, "registers per thread": 32, "shared memory": 1024, "est. achieved occupancy %": 50})
      for start in (300, 310)),
    event("gpu_memcpy", "Memcpy HtoD", 330, 2.0, bytes=64, **{"External id": 2}),
    event("kernel", "stray", 340, 1.0, grid=[1, 1, 1], block=[1, 1, 1]),
]}

EMPTY: dict[str, Any] = {"traceEvents": []}


def test_a_kernel_is_told_with_its_launcher_phase_and_geometry() -> None:
    gemm, copy, stray = kernel_rows([TRACE, EMPTY])
    assert gemm == {"phase": "forward", "operator": "aten::addmm", "kernel": "gemm", "num_calls": 1.0,
                    "device_s": pytest.approx(4e-6), "grid": "[8,1,1]", "block": "[256,1,1]", "registers": 32,
                    "shared_memory_bytes": 1024, "occupancy_frac": 0.5}
    assert (copy["phase"], copy["operator"], copy["grid"], copy["registers"]) == ("backward", "aten::mm", None, None)
    assert (stray["phase"], stray["operator"]) == (None, None)


def test_device_time_is_summed_by_operator() -> None:
    assert device_ns_by_operator(TRACE) == {1: 8000, 2: 2000}


@pytest.mark.skipif(not TRACES.is_dir(), reason="the recorded traces are not here")
def test_a_real_trace_gives_the_times_that_another_tool_finds_in_it() -> None:
    trace = json.loads(gzip.decompress((TRACES / "h100_vit_infer.json.gz").read_bytes()))
    rows = kernel_rows([trace])
    kernels = [row for row in rows if row["grid"] is not None]
    raw = [entry for entry in trace["traceEvents"] if entry.get("cat") == "kernel"]
    assert sum(row["num_calls"] for row in kernels) == len(raw)
    assert sum(row["device_s"] for row in kernels) == pytest.approx(sum(entry["dur"] for entry in raw) / 1e6)
    assert sum(row["num_calls"] for row in kernels if row["operator"]) / len(raw) > 0.99
    assert all(0 <= row["occupancy_frac"] <= 1 for row in kernels if row["occupancy_frac"] is not None)
    assert {row["operator"] for row in kernels} >= {"aten::addmm"}
    launched = device_ns_by_operator(trace)
    assert sum(launched.values()) / 1e9 == pytest.approx(sum(row["device_s"] for row in rows), rel=0.01)
