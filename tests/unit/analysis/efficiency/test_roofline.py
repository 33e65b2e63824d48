"""Ceilings and the roofline against numbers worked out by hand from tests/support/judged.py."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import records
from support.judged import CEILINGS, ceiling, ceilings_of, counted, judged, operator

from charact.analysis.efficiency.ceilings import (
    case_ceilings,
    ceilings,
    ceilings_reason,
    product_ceiling,
    transfer_ceiling,
)
from charact.analysis.efficiency.roofline import By, roofline
from charact.record.reader import load_run

PHASES = {"data": 0.010, "forward": 0.050, "loss": 0.010, "update": 0.020, "other": 0.010}
CASE = "net-32-b8-train-fp32-cpu"
BYS: list[By] = ["case", "phase", "operator_type", "layer"]
OPERATORS = [
    operator("forward", "GEMM", 0.04, flop=3e10, num_bytes=1e8, layer="head"),
    operator("forward", "convolution", 0.005, flop=1e9, num_bytes=2e8, layer="stem"),
    operator("update", "optimizer", 0.02, num_bytes=1e9, layer=None),
]


class TestCeilings:
    def test_are_those_of_the_manifest(self, tmp_path: Path) -> None:
        measured = ceilings(judged(tmp_path, PHASES))
        assert measured["ceiling"].tolist() == ["gemm", "gemm", "copy", "triad", "copy", "launch"]
        assert measured.loc[3, ["value", "low", "high"]].tolist() == pytest.approx([1e11, 0.99e11, 1.01e11])
        assert measured["datasheet"].isna().all()
        over = case_ceilings(judged(tmp_path, PHASES)).iloc[0]
        assert over[["peak_flop_per_s", "peak_bytes_per_s", "launch_s"]].tolist() == [1e12, 1e11, 1e-5]
        assert over["reason"] is None
        run = judged(tmp_path, PHASES, entry={"device": "cuda"}, ceilings=ceilings_of("cuda:0"))
        assert case_ceilings(run)["peak_flop_per_s"][0] == 1e12

    @pytest.mark.parametrize(("precision", "peak"), [("fp32", 1e12), ("bf16", 2e12), ("pure-bf16", 2e12)])
    def test_are_of_the_precision_that_products_are_computed_in(
            self, tmp_path: Path, precision: str, peak: float) -> None:
        assert case_ceilings(judged(tmp_path, PHASES, entry={"precision": precision}))["peak_flop_per_s"][0] == peak

    @pytest.mark.parametrize(("case", "other", "reason"), [
        ({"device": "cuda:1"}, {}, "no ceilings of cuda:1 were measured: run charact doctor --ceilings"),
        ({"precision": "fp16"}, {}, "no ceiling of products in fp16 was measured on cpu"),
        ({"precision": "as written"}, {}, "the precision of the program’s products was not counted"),
        ({}, {"ceilings": [CEILINGS[0]]}, "the memory bandwidth of cpu was not measured"),
        ({}, {"ceilings": [], "ceilings_reason": "none were asked for: charact doctor --ceilings"},
         "none were asked for: charact doctor --ceilings"),
        ({}, {"ceilings": []}, "no ceilings were measured before this run: run charact doctor --ceilings"),
        ({}, {"ceilings": [], "options": {"traces": ["a"]}}, "a trace has no ceilings of its machine"),
    ])  # fmt: skip
    def test_are_missed_with_a_reason(
            self, tmp_path: Path, case: dict[str, Any], other: dict[str, Any], reason: str) -> None:
        run = judged(tmp_path, PHASES, OPERATORS, entry=case, manifest=other)
        assert case_ceilings(run)["reason"][0].startswith(reason)

    def test_of_products_and_transfers(self, tmp_path: Path) -> None:
        rows = [*ceilings_of("cuda:0"), ceiling("host_to_device", 1e10, device="cuda:0"),
                ceiling("host_to_device", 2e10, device="cuda:0"), ceiling("host_to_device", 3e10, device="cuda:1"),
                ceiling("device_to_host", 4e10, device="cuda:0")]
        run = judged(tmp_path, PHASES, ceilings=rows)
        ways = "host_to_device", "device_to_host"
        assert [transfer_ceiling(run, "cuda", way) for way in ways] == [2e10, 4e10]
        assert transfer_ceiling(run, "cuda:1", ways[0]) == 3e10
        assert [product_ceiling(run, "cuda", precision) for precision in ("fp32", "pure-bf16")] == [1e12, 2e12]
        assert np.isnan([transfer_ceiling(run, "cuda:1", ways[1]), product_ceiling(run, "cuda:1", "fp32"),
                         product_ceiling(run, "cuda", "fp16")]).all()

    def test_of_a_record_that_is_older(self, record: Path) -> None:
        run = load_run(record)
        assert ceilings(run).empty
        assert str(ceilings_reason(run)).startswith("no ceilings were measured before this run")
        assert ceilings_reason(judged(record.parent, PHASES)) is None


class TestRoofline:
    def test_by_phase_and_case(self, tmp_path: Path) -> None:
        rows = roofline(judged(tmp_path, PHASES, OPERATORS), "phase")
        assert rows["phase"].tolist() == ["forward", "update"]
        forward, update = rows.to_dict("records")
        assert (forward["flop"], forward["bytes"], forward["time_s"]) == pytest.approx((3.1e10, 3e8, 0.05))
        assert forward["flop_per_byte"] == pytest.approx(3.1e10 / 3e8)
        assert (forward["flop_per_s"], forward["bytes_per_s"]) == pytest.approx((6.2e11, 6e9))
        # 31 ms of products at 1 TFLOP/s, 3 ms of bytes at 100 GB/s.
        assert (forward["limit"], forward["attainable_flop_per_s"]) == ("compute", pytest.approx(1e12))
        assert forward["share_frac"] == pytest.approx(0.62)
        assert (forward["bytes_method"], forward["clock"], forward["reason"]) == ("modelled", "timing", None)
        assert (update["limit"], update["share_frac"]) == ("bandwidth", pytest.approx(0.5))
        assert np.isnan([update[name] for name in ("flop", "flop_per_s", "attainable_flop_per_s")]).all()
        assert update["reason"] is None
        case = roofline(judged(tmp_path, PHASES, OPERATORS), "case").iloc[0]
        assert (case["flop"], case["bytes"], case["time_s"]) == pytest.approx((3.1e10, 1.3e9, 0.1))
        assert (case["limit"], case["share_frac"]) == ("compute", pytest.approx(0.31))
        operators = [operator("update", "optimizer", 0.01, num_bytes=6e9)]
        rows = roofline(judged(tmp_path, PHASES, operators), "phase")
        assert rows["share_frac"].tolist() == pytest.approx([3.0])
        operators = [operator("forward", "GEMM", 0.001, device_s=0.04, flop=2e10, num_bytes=1e6)]
        run = judged(tmp_path, PHASES, operators, on_device=True, entry={"device": "cuda:0"},
                     ceilings=ceilings_of("cuda:0"))
        assert roofline(run, "operator_type")["time_s"].tolist() == [0.04]

    @pytest.mark.parametrize(("by", "names"), [("operator_type", ["GEMM", "optimizer", "convolution"]),
                                               ("layer", ["head", "stem"])])
    def test_by_operator_type_and_layer(self, tmp_path: Path, by: By, names: list[str]) -> None:
        rows = roofline(judged(tmp_path, PHASES, OPERATORS), by)
        assert rows[by].tolist() == names
        assert set(rows["clock"]) == {"profiler"}
        gemm, convolution = rows.iloc[0], rows.iloc[-1]
        assert (gemm["time_s"], gemm["share_frac"], gemm["limit"]) == (0.04, pytest.approx(0.75), "compute")
        # 5 FLOP a byte: 100 GB/s feed no more than 500 GFLOP/s.
        assert convolution["attainable_flop_per_s"] == pytest.approx(5e11)
        assert (convolution["limit"], convolution["share_frac"]) == ("bandwidth", pytest.approx(0.4))

    @pytest.mark.parametrize(("method", "num_bytes", "bytes_method"), [
        ("measured", 2e9, "measured"), ("sampled", 2e9, "measured"), ("estimated", 3e8, "modelled")])
    def test_bytes_that_a_counter_read_come_before_those_of_the_model(
            self, tmp_path: Path, method: str, num_bytes: float, bytes_method: str) -> None:
        described = {"ncu": {"dram_bytes": {"definition": "bytes", "method": method, "scope": "device"}}}
        counters = [counted("ncu", "dram_bytes", 2e9, phase="forward"), counted("ncu", "dram_bytes", 5e9),
                    counted("ncu", "kernel_s", 1.0)]
        run = judged(tmp_path, PHASES, OPERATORS, counters=counters, manifest={"counters": described})
        forward, update = roofline(run, "phase").to_dict("records")
        assert (forward["bytes"], forward["bytes_method"]) == (num_bytes, bytes_method)
        assert (update["bytes"], update["bytes_method"]) == (1e9, "modelled")
        assert roofline(run, "case")["bytes"].tolist() == [5e9 if bytes_method == "measured" else 1.3e9]
        assert set(roofline(run, "operator_type")["bytes_method"]) == {"modelled"}

    def test_without_ceilings_rates_are_told_and_why_nothing_else_is(self, tmp_path: Path) -> None:
        forward = roofline(judged(tmp_path, PHASES, OPERATORS, ceilings=[]), "phase").iloc[0]
        assert forward["flop_per_s"] == pytest.approx(6.2e11)
        assert forward[["attainable_flop_per_s", "share_frac", "limit"]].isna().all()
        assert "charact doctor --ceilings" in forward["reason"]
        rows = roofline(judged(tmp_path, PHASES, OPERATORS, ceilings=CEILINGS[1:]), "phase")
        assert rows["limit"].tolist() == [None, "bandwidth"]
        assert rows["reason"].tolist() == [
            "no ceiling of products in fp32 was measured on cpu, which may not support them", None]

    @pytest.mark.parametrize(("changes", "reason"), [
        ({"entry": {"passes": {"flop": {"status": "failed", "reason": "RuntimeError: no"}}}}, "RuntimeError: no"),
        ({"manifest": {"options": {"traces": ["a"]}}}, "a trace has no FLOP"),
    ])
    def test_a_case_without_work_has_a_row_with_the_reason(
            self, tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
        run = judged(tmp_path, PHASES, **changes)
        case = roofline(run, "case").iloc[0]
        assert case["time_s"] == pytest.approx(0.1)
        assert case[["flop", "bytes", "share_frac", "limit"]].isna().all()
        assert case["reason"].startswith(reason)
        assert all(roofline(run, by).empty for by in BYS[1:])

    def test_a_program_without_the_operator_pass_names_it(self, tmp_path: Path) -> None:
        run = judged(tmp_path, PHASES, manifest={"options": {"script": "a.py"}})
        del run.manifest["cases"][0]["passes"]["flop"]
        assert roofline(run, "case").iloc[0]["reason"].endswith("run charact run --passes operators")

    def test_work_of_a_pass_that_was_not_timed(self, tmp_path: Path) -> None:
        run = judged(tmp_path, PHASES, OPERATORS, entry={"passes": {"operators": {
            "status": "failed", "reason": "RuntimeError: busy"}}})
        records.drop_table(run.path, "operators")
        layer = roofline(load_run(run.path), "layer").iloc[0]
        assert (layer["flop"], layer["reason"]) == (3e10, "RuntimeError: busy")
        assert layer[["time_s", "flop_per_s", "share_frac"]].isna().all()

    @pytest.mark.parametrize("by", BYS)
    def test_the_columns_are_the_same_where_tables_are_missing(self, tmp_path: Path, by: By) -> None:
        run = judged(tmp_path, PHASES, OPERATORS)
        columns = list(roofline(run, by).columns)
        for table in ("operators", "flop", "iterations"):
            records.drop_table(run.path, table)
            assert list(roofline(load_run(run.path), by).columns) == columns
