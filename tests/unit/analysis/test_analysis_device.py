"""Kernels and counters of a record with known numbers."""

from pathlib import Path

import pytest
from support.records import case_entry, case_tables

from charact import load_run
from charact.analysis import counter_values, top_kernels
from charact.views.html import sections
from charact.writer import RunWriter


def kernel(name: str, device_s: float, occupancy_frac: float | None, phase: str = "forward") -> dict[str, object]:
    geometry = None if occupancy_frac is None else "[1,1,1]"
    return {"phase": phase, "operator": "aten::mm", "kernel": name, "num_calls": 2.0, "device_s": device_s,
            "grid": geometry, "block": geometry, "registers": 32, "shared_memory_bytes": 0,
            "occupancy_frac": occupancy_frac}


@pytest.fixture
def gpu_record(tmp_path: Path) -> Path:
    writer = RunWriter(tmp_path, "gpu", {"machine": {}, "software": {}, "options": {}, "command_line": []})
    entry = case_entry("resnet50", 32, "train")
    entry["passes"]["kernels"] = {"status": "ok", "reason": None}
    tables = case_tables("train", 32) | {"kernels": [
        kernel("gemm<a>", 0.003, 0.2), kernel("gemm<a>", 0.001, 0.6, "backward"), kernel("Memcpy HtoD", 0.001, None)]}
    writer.add_case(entry, tables)
    writer.close("complete")
    return writer.publish()


def test_kernels_are_summed_over_geometries_and_occupancy_is_weighted_by_time(gpu_record: Path) -> None:
    gemm, copy = top_kernels(load_run(gpu_record)).to_dict("records")
    assert (gemm["kernel"], gemm["num_calls"], gemm["device_s"]) == ("gemm<a>", 4.0, pytest.approx(0.004))
    assert gemm["share_frac"] == pytest.approx(0.8)
    assert gemm["occupancy_frac"] == pytest.approx((0.2 * 3 + 0.6 * 1) / 4)
    assert copy["occupancy_frac"] != copy["occupancy_frac"]  # null: copies occupy no multiprocessor


def test_the_sections_show_them_escaped_and_in_words(gpu_record: Path) -> None:
    shown = {section.id: section.html for section in sections(load_run(gpu_record))}
    assert "gemm&lt;a&gt;" in shown["kernels"]
    assert "gemm<a>" not in shown["kernels"]
    assert "30.0 %" in shown["kernels"]
    assert "n/a (a copy or fill)" in shown["kernels"]
    assert "93.0 %" in shown["counters"]
    assert "cpu utilization" in shown["counters"]


def test_a_run_without_a_gpu_says_why_it_has_no_kernels(record: Path) -> None:
    run = load_run(record)
    assert top_kernels(run).empty
    assert list(top_kernels(run).columns) == [
        "case", "kernel", "num_calls", "device_s", "share_frac", "occupancy_frac"]
    shown = {section.id: section.html for section in sections(run)}
    assert "n/a (no CUDA device: kernels run on GPUs only)" in shown["kernels"]


def test_counters_over_the_pass(record: Path) -> None:
    values = counter_values(load_run(record))
    assert list(values["counter"].unique()) == ["cpu_utilization_frac"]
    assert set(values["value"]) == {0.93}
