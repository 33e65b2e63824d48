"""Ratios of times, by case and by its parts, of records made by hand."""

import math
from pathlib import Path

import pytest
from support.compared import CASE, record, scattered, side
from support.operation_records import Operations
from support.records import case_entry, write_record

from charact.analysis.compare import RATIOS_BY, Group, ratios
from charact.core.errors import UserError
from charact.record.reader import load_run


def test_a_slower_phase_is_found(base_and_new: list[Group]) -> None:
    case = ratios(base_and_new, "case").iloc[0]
    assert case["case"] == CASE
    assert case["ratio"] == pytest.approx(1.05, rel=0.005)
    assert case["ratio"] == case["time_s"] / case["base_s"]
    assert case["low"] < 1.05 < case["high"]
    assert case["significant"]
    phases = ratios(base_and_new, "phase").set_index("phase")
    assert phases.index.to_list() == ["data", "forward", "loss", "backward", "update", "other"]
    assert phases["ratio"]["backward"] == pytest.approx(1.1, rel=0.005)
    assert phases.index[phases["significant"]].to_list() == ["backward"]


def test_what_the_profiler_saw_is_scaled_to_the_timing(base_and_new: list[Group]) -> None:
    operators = ratios(base_and_new, "operator").set_index("operator")
    backward = operators.loc["aten::mkldnn_convolution_backward"]
    assert operators.index[0] == "aten::mkldnn_convolution_backward"
    # 90 % of a phase of 50 ms that the profiler lengthens by 4 %.
    assert backward["base_s"] == pytest.approx(0.9 * 0.050 / 1.04, rel=0.01)
    assert backward["ratio"] == pytest.approx(1.1, rel=0.01)
    assert "several runs" in backward["reason"]
    assert not backward["significant"]
    kinds = ratios(base_and_new, "operator_type").set_index("operator_type")
    layers = ratios(base_and_new, "layer").set_index("layer")
    assert layers["base_s"]["layer1.0.conv1"] == pytest.approx(kinds["base_s"]["convolution"])
    assert kinds["base_s"]["convolution"] == pytest.approx((0.9 * 0.050 + 0.7 * 0.030) / 1.04, rel=0.01)


@pytest.mark.slow
def test_several_runs_judge_operators(tmp_path: Path) -> None:
    base = side("base", *(scattered(tmp_path, seed=seed) for seed in range(4)))
    new = side("new", *(scattered(tmp_path, {"backward": 1.1}, seed=seed) for seed in range(4, 8)))
    operators = ratios([base, new], "operator").set_index("operator")
    assert operators.index[operators["significant"]].to_list() == ["aten::mkldnn_convolution_backward"]
    assert operators["reason"].isna().all()
    case = ratios([base, new], "case").iloc[0]
    medians = [ratios([base, side("one", run)], "case")["time_s"][0] for run in new.runs]
    assert case["time_s"] == pytest.approx(math.prod(medians) ** 0.25)


def test_a_part_that_one_side_lacks_has_no_ratio(tmp_path: Path) -> None:
    base = write_record(tmp_path, sizes=(32,), modes=("train",), layer="gone")
    new = write_record(tmp_path, sizes=(32,), modes=("train",), layer="come")
    layers = ratios([side("base", load_run(base)), side("new", load_run(new))], "layer").set_index("layer")
    assert layers.loc["gone", ["time_s", "ratio"]].isna().all()
    assert layers["reason"]["gone"] == "not here"
    assert layers["reason"]["come"] == "not in the baseline"


def test_a_failed_case_has_its_reason(tmp_path: Path) -> None:
    base, new = case_entry("vgg16", 32, "train"), case_entry("vgg16", 32, "train", status="oom", reason="no room")
    sides = [side("base", record(tmp_path, base)), side("new", record(tmp_path, new))]
    assert ratios(sides, "case")["reason"].to_list() == ["no room"]
    assert ratios(sides[::-1], "case")["reason"].to_list() == ["in the baseline: no room"]


def test_operations_are_compared_by_problem(tmp_path: Path) -> None:
    slow = Operations(tmp_path).add("gemm:8x8x8", {"forward": 0.2, "backward_input": 0.1}).run()
    fast = Operations(tmp_path).add("gemm:8x8x8", {"forward": 0.1, "backward_input": 0.1}).run()
    sides = [side("slow", slow), side("fast", fast)]
    problems = ratios(sides, "problem").set_index("problem")
    assert problems.index.to_list() == ["gemm:8x8x8 forward", "gemm:8x8x8 backward_input"]
    assert problems["ratio"].to_list() == pytest.approx([0.5, 1.0])
    assert problems["significant"].to_list() == [True, False]
    case = ratios(sides, "case").iloc[0]
    assert (case["base_s"], case["time_s"]) == (pytest.approx(0.3), pytest.approx(0.2))
    assert case["significant"]


def test_an_unknown_part_is_refused(base_and_new: list[Group]) -> None:
    with pytest.raises(UserError, match="cannot compare by 'stream': choose from case, phase,"):
        ratios(base_and_new, "stream")


@pytest.mark.parametrize("by", RATIOS_BY)
def test_columns_are_those_promised(base_and_new: list[Group], by: str) -> None:
    part = [] if by == "case" else [by]
    assert ratios(base_and_new, by).columns.to_list() == [
        "case", *part, "side", "base_s", "time_s", "ratio", "low", "high", "p_value", "significant", "reason"]


@pytest.mark.parametrize("by", RATIOS_BY)
def test_a_side_against_itself_is_exactly_one(base_and_new: list[Group], by: str) -> None:
    same = ratios([base_and_new[0], side("again", *base_and_new[0].runs)], by)
    assert (same["ratio"] == 1).all()
    assert not same["significant"].any()
