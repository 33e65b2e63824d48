"""Kernels of records with known numbers."""

from pathlib import Path

import pandas as pd
import pytest
from support.counter_records import KERNEL, gpu_entry, row, write_gpu
from support.records import run_of

from charact.analysis.efficiency.kernels import counted_kernels, top_kernels
from charact.analysis.efficiency.utilization import UTILIZATION_METRICS
from charact.record.reader import load_run


def kernel(name: str, device_s: float, occupancy_frac: float | None, phase: str = "forward") -> dict[str, object]:
    geometry = None if occupancy_frac is None else "[1,1,1]"
    return {"phase": phase, "operator": "aten::mm", "kernel": name, "num_calls": 2.0, "device_s": device_s,
            "grid": geometry, "block": geometry, "registers": 32, "shared_memory_bytes": 0,
            "occupancy_frac": occupancy_frac}


def test_kernels_are_summed_over_phases_and_occupancy_is_weighted_by_time(tmp_path: Path) -> None:
    rows = [kernel("gemm", 0.003, 0.2), kernel("gemm", 0.001, 0.6, "backward"), kernel("Memcpy HtoD", 0.001, None)]
    gemm, copy = top_kernels(run_of(tmp_path, (gpu_entry(), {"kernels": rows}))).to_dict("records")
    assert (gemm["kernel"], gemm["num_calls"], gemm["device_s"]) == ("gemm", 4.0, pytest.approx(0.004))
    assert gemm["share_frac"] == pytest.approx(0.8)
    assert gemm["occupancy_frac"] == pytest.approx((0.2 * 3 + 0.6 * 1) / 4)
    assert pd.isna(copy["occupancy_frac"])  # copies occupy no multiprocessor


def test_geometry_where_one_holds_for_all_launches(tmp_path: Path) -> None:
    kernels = top_kernels(load_run(write_gpu(tmp_path))).set_index("kernel")
    assert kernels.index[0] == KERNEL
    gemm = kernels.loc[KERNEL]
    assert (gemm["grid"], gemm["block"], gemm["registers"]) == ("[64,2,1]", "[256,1,1]", 128)
    assert (gemm["shared_memory_bytes"], gemm["varying"]) == (49152, "")
    norm = kernels.loc["layer_norm"]
    assert pd.isna(norm["grid"])  # it was launched in two
    assert (norm["block"], norm["registers"], norm["varying"]) == ("[256,1,1]", 128, "grid")
    copy = kernels.iloc[-1]
    assert copy[["grid", "block", "registers", "shared_memory_bytes"]].isna().all()
    assert copy["varying"] == ""


def test_what_was_counted_of_a_kernel_is_averaged_over_its_time_and_joined_whatever_its_blanks(tmp_path: Path) -> None:
    run = load_run(write_gpu(tmp_path))
    # 20 ms in the forward pass, 10 ms in the backward at 0.7 of each.
    expected = [0.9 * value for value in (0.7, 1.0, 0.95, 0.4, 15e12)]
    kernels = top_kernels(run).set_index("kernel")
    assert kernels.loc[KERNEL, list(UTILIZATION_METRICS)].tolist() == pytest.approx(expected)
    assert kernels.loc["layer_norm", list(UTILIZATION_METRICS)].isna().all()
    counted = counted_kernels(run)
    assert counted["kernel_s"].tolist() == pytest.approx([0.03, 0.03])
    assert counted["kernel"].tolist() == [KERNEL.replace(" ", ""), "renamed<1>"]


def test_a_metric_that_was_read_of_one_launch_only_is_averaged_over_its_time_alone(tmp_path: Path) -> None:
    rows = [row("ncu", "kernel_s", 3.0, kernel="k", phase="forward"),
            row("ncu", "kernel_s", 1.0, kernel="k", phase=None),
            row("ncu", "warp_occupancy_frac", 0.5, kernel="k", phase=None)]  # fmt: skip
    (counted,) = counted_kernels(run_of(tmp_path, (gpu_entry(), {"counters": rows}))).to_dict("records")
    assert (counted["kernel_s"], counted["warp_occupancy_frac"]) == (4.0, 0.5)
    assert pd.isna(counted["flop_per_s"])


def test_counted_names_that_differ_in_blanks_only_do_not_repeat_a_kernel(tmp_path: Path) -> None:
    counters = [row("ncu", name, value, phase="forward", kernel=kernel_name) for kernel_name in ("a<1, 2>", "a<1,2>")
                for name, value in (("kernel_s", 0.01), ("warp_occupancy_frac", 0.5))]
    run = run_of(tmp_path, (gpu_entry(), {"kernels": [kernel("a<1, 2>", 0.01, 0.5)], "counters": counters}))
    assert top_kernels(run)["kernel"].tolist() == ["a<1, 2>"]
