"""Small synthetic traces that others wrote, with the right values in a file of their own."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from charact.core.errors import UserError
from charact.traces.cases import trace_case
from charact.traces.reader import read_trace

CASES = Path(__file__).resolve().parents[4] / "shared" / "cases" / "traces"
pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason="needs the cases in ../shared/cases/traces")
RIGHT: dict[str, dict[str, Any]] = {
    name: case["right"] for name, case in (
        json.loads((CASES / "expected.json").read_text(encoding="utf-8")).items() if CASES.is_dir() else ())
    if name.endswith(".json")
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_values_are_right(name: str) -> None:
    right = RIGHT[name]
    if right.get("refused"):
        with pytest.raises(UserError, match="is a memory timeline"):
            read_trace(CASES / name)
        return
    entry, rows = trace_case(read_trace(CASES / name), "case")
    tables = {table: pd.DataFrame(found) for table, found in rows.items()}
    counters = dict(zip(tables["counters"]["counter"], tables["counters"]["value"], strict=True)) if rows[
        "counters"] else {}
    phases = tables["iterations"].assign(
        time_s=tables["iterations"]["device_s"].fillna(tables["iterations"]["host_s"])).groupby("phase")["time_s"].sum()
    timing = entry.passes.timing
    found: dict[str, Any] = {
        "num_iterations": timing.num_iterations, "median_us": (timing.median_s or 0) * 1e6,
        "median_us_about": round((timing.median_s or 0) * 1e6, -2), "device_name": entry.device_name,
        **{f"{phase}_us": time_s * 1e6 for phase, time_s in phases.items()},
        "update_us_about": round(float(phases.get("update", 0)) * 1e6, -2),
        "gpu_busy_of_marked_steps_percent": 100 * counters.get("utilization_frac", 0),
        "gpu_busy_percent_about": round(100 * counters.get("utilization_frac", 0), 1),
        "exposed_communication_us": counters.get("exposed_communication_s", 0) * 1e6,
        "num_gaps": counters.get("num_gaps"),
        **{f"{name}_us": counters.get(f"{name}_s", 0) * 1e6 for name in ("gap", "busy", "span")},
    }  # fmt: skip
    for key in right.keys() & found.keys():
        assert found[key] == (right[key] if isinstance(right[key], str) else pytest.approx(right[key])), key
    if "data_us_at_most" in right:
        assert phases.get("data", 0) * 1e6 <= right["data_us_at_most"]
    if "gemm" in right:
        gemm = tables["kernels"].query("kernel == 'gemm'")[["num_calls", "device_s"]].sum()
        assert gemm.tolist() == pytest.approx([right["gemm"]["num_calls"], right["gemm"]["device_us"] / 1e6])
    if "blind_spot" in right:
        words = ("launches (40)", "mtia_ccp_events are not read", "cudaDeviceSynchronize called")
        assert any(word in spot for spot in timing.blind_spots for word in words)
        assert sum(each.num_dropped for each in timing.dropped) >= right.get("dropped_at_least", 0)
