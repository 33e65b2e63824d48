"""Ratios of times, by case and by its parts, of synthetic records, and their geometric means."""

import math
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.compared import CASE, PUBLISHED, record, scattered, side
from support.operation_records import Operations
from support.records import case_entry, write_record

from charact.analysis.compare import RATIOS_BY, Group, geometric_means, ratios, speedups
from charact.core.errors import UserError
from charact.record.reader import Run, load_run


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


def test_operators_are_scaled_to_the_timing(base_and_new: list[Group]) -> None:
    operators = ratios(base_and_new, "operator").set_index("operator")
    backward = operators.loc["aten::mkldnn_convolution_backward"]
    assert operators.index[0] == "aten::mkldnn_convolution_backward"
    # 90 % of a phase of 50 ms that the profiler lengthens by 4 %.
    assert backward["base_s"] == pytest.approx(0.9 * 0.050 / 1.04, rel=0.01)
    assert backward["ratio"] == pytest.approx(1.1, rel=0.01)
    assert "several runs" in backward["reason"]
    assert not backward["significant"]
    types = ratios(base_and_new, "operator_type").set_index("operator_type")["base_s"]
    layers = ratios(base_and_new, "layer").set_index("layer")["base_s"]
    assert layers["layer1.0.conv1"] == pytest.approx(types["convolution"])
    assert types["convolution"] == pytest.approx((0.9 * 0.050 + 0.7 * 0.030) / 1.04, rel=0.01)


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


def test_what_has_no_ratio_has_its_reason(tmp_path: Path) -> None:
    base, new = (load_run(write_record(tmp_path, sizes=(32,), modes=("train",), layer=layer))
                 for layer in ("gone", "come"))
    layers = ratios([side("base", base), side("new", new)], "layer").set_index("layer")
    assert layers.loc["gone", ["time_s", "ratio"]].isna().all()
    assert layers["reason"].loc[["gone", "come"]].to_list() == ["not here", "not in the baseline"]
    entries = case_entry("vgg16", 32, "train"), case_entry("vgg16", 32, "train", status="oom", reason="no room")
    sides = [side(label, record(tmp_path, entry)) for label, entry in zip("ab", entries, strict=True)]
    assert ratios(sides, "case")["reason"].to_list() == ["no room"]
    assert ratios(sides[::-1], "case")["reason"].to_list() == ["in the baseline: no room"]
    mean = geometric_means([sides[0], side("b", *sides[0].runs)]).iloc[0]
    assert (mean["num_cases"], mean["reason"]) == (0, "no case has a speedup")
    assert pd.isna(mean["speedup"])


def test_operations_are_compared_by_problem(tmp_path: Path) -> None:
    sides = [side(str(time_s), Operations(tmp_path).add("gemm:8x8x8", {"forward": time_s, "backward_input": 0.1}).run())
             for time_s in (0.2, 0.1)]
    problems = ratios(sides, "problem").set_index("problem")
    assert problems.index.to_list() == ["gemm:8x8x8 forward", "gemm:8x8x8 backward_input"]
    assert problems["ratio"].to_list() == pytest.approx([0.5, 1.0])
    assert problems["significant"].to_list() == [True, False]
    case = ratios(sides, "case").iloc[0]
    assert (case["base_s"], case["time_s"]) == (pytest.approx(0.3), pytest.approx(0.2))
    assert case["low"] <= case["ratio"] <= case["high"]
    assert case["significant"]


def test_unknown_parts_and_groups_are_one_line(base_and_new: list[Group], published: list[Group]) -> None:
    with pytest.raises(UserError, match="cannot compare by 'stream': choose from case, phase,"):
        ratios(base_and_new, "stream")
    with pytest.raises(UserError, match="cannot group by 'machine': choose from workload,"):
        geometric_means(published, "machine")


@pytest.mark.parametrize("by", RATIOS_BY)
def test_a_group_against_itself_is_exactly_one(base_and_new: list[Group], by: str) -> None:
    same = ratios([base_and_new[0], side("again", *base_and_new[0].runs)], by)
    assert (same["ratio"] == 1).all()
    assert not same["significant"].any()
    part = [] if by == "case" else [by]
    assert same.columns.to_list() == [
        "case", *part, "side", "base_s", "time_s", "ratio", "low", "high", "p_value", "significant", "reason"]


def test_speedups_and_means_of_published_tables(published: list[Group]) -> None:
    table = speedups(published).pivot(index="workload", columns="data", values="speedup").round(4)
    assert table.loc["googlenet", ["cifar10", "mnist", "kmnist"]].to_list() == [2.7811, 2.8301, 2.8246]
    assert table.loc["resnet18", ["cifar10", "mnist", "kmnist"]].to_list() == [2.6290, 2.8175, 2.8684]
    by_workload = geometric_means(published, "workload").set_index("workload")
    assert by_workload["speedup"].round(4).to_dict() == {"googlenet": 2.8118, "resnet18": 2.7697}
    total = geometric_means(published).iloc[0]
    assert (round(total["speedup"], 4), total["num_cases"]) == (2.7907, 6)
    # The interval is Student's of the logarithms.
    logs = [math.log(value) for value in (2.781103, 2.830069, 2.824629)]
    spread = math.sqrt(sum((log - sum(logs) / 3) ** 2 for log in logs) / 2)
    mean = by_workload.loc["googlenet"]
    reach = pytest.approx(4.3027 * spread / math.sqrt(3), rel=1e-3)
    assert math.log(mean["high"] / mean["speedup"]) == reach
    assert math.log(mean["speedup"] / mean["low"]) == reach


def test_the_mean_of_one_case_is_its_speedup(base_and_new: list[Group]) -> None:
    mean, case = geometric_means(base_and_new).iloc[0], speedups(base_and_new).iloc[0]
    assert mean["num_cases"] == 1
    assert mean[["speedup", "low", "high"]].to_list() == case[["speedup", "low", "high"]].to_list()
    ratio = ratios(base_and_new, "case").iloc[0]
    assert case[["speedup", "low", "high"]].to_list() == pytest.approx([1 / ratio[name]
                                                                        for name in ("ratio", "high", "low")])


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(6)))
def test_the_order_of_cases_changes_nothing(published: list[Group], order: list[int]) -> None:
    run = published[1].runs[0]
    shuffled = run.manifest | {"cases": [run.manifest["cases"][number] for number in order]}
    again = [published[0], side(PUBLISHED[1], Run(run.path, shuffled, _tables=run._tables))]
    pd.testing.assert_frame_equal(speedups(again), speedups(published))
    pd.testing.assert_frame_equal(geometric_means(again[::-1]).drop(columns="side"),
                                  geometric_means(published[::-1]).drop(columns="side"))  # fmt: skip
