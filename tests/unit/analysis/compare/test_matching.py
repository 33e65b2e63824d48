"""Which cases of several groups are the same, and how the nearest of those that are not differs."""

from pathlib import Path
from typing import Any

import pytest
from support.compared import on_device, record, side
from support.operation_records import Operations
from support.records import case_entry

from charact.analysis.compare import (
    RATIOS_BY,
    geometric_means,
    ignored_differences,
    ignoring_differences,
    matched_cases,
    metric_ratios,
    ratios,
    speedups,
    unmatched_cases,
)

ENTRY = case_entry("vgg16", 32, "train")
OTHER = case_entry("vgg16", 64, "train")


def test_a_case_is_the_same_on_another_device(tmp_path: Path) -> None:
    sides = [side("cpu", record(tmp_path, ENTRY)), side("gpu", record(tmp_path, on_device(ENTRY, "cuda:0")))]
    assert matched_cases(sides)[["case", "side", "run", "run_case"]].to_numpy().tolist() == [
        ["vgg16-32-b8-train-fp32", "cpu", 0, "vgg16-32-b8-train-fp32-cpu"],
        ["vgg16-32-b8-train-fp32", "gpu", 0, "vgg16-32-b8-train-fp32-cuda0"],
    ]
    assert unmatched_cases(sides).empty


def test_repeats_are_in_order_and_the_same_case_twice_in_a_run_is_matched_by_it(tmp_path: Path) -> None:
    runs = [record(tmp_path, ENTRY) for _ in range(3)]
    matched = matched_cases([side("one", *runs[:2]), side("other", runs[2])])
    assert matched[["side", "run"]].to_numpy().tolist() == [["one", 0], ["one", 1], ["other", 0]]
    assert set(matched["case"]) == {"vgg16-32-b8-train-fp32-cpu"}
    twice = record(tmp_path, on_device(ENTRY, "cuda:0"), on_device(ENTRY, "cuda:1"))
    assert matched_cases([side("one", twice), side("other", twice)])["run_case"].to_list() == [
        f"vgg16-32-b8-train-fp32-cuda{number}" for number in (0, 0, 1, 1)]


@pytest.mark.parametrize(("change", "why"), [
    ({"batch_size": 16}, "batch size 8 here, 16 there"),
    ({"mode": "infer"}, "mode train here, infer there"),
    ({"precision": "bf16", "rank": 1}, "precision fp32 here, bf16 there, rank 0 here, 1 there"),
    ({"variant": ""}, "variant imagenet here, unknown there"),
    ({"workload": "alexnet"}, "it has no case of vgg16"),
    ({"world_size": 2}, "world size 1 here, 2 there"),
    ({"attention": "math"}, "attention PyTorch's choice here, math there"),
    ({"lora_rank": 4}, "LoRA rank 0 here, 4 there"),
    ({"output_size": 8, "cache": "int8"}, "output size unknown here, 8 there, cache unknown here, int8 there"),
    # Another workload may share more of its other coordinates.
    ({"input_size": 64, "batch_size": 16, "mode": "infer"},
     "mode train here, infer there, input size 32 here, 64 there, batch size 8 here, 16 there"),
])
def test_why_a_case_is_unmatched(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    others = [] if "workload" in change else [
        case_entry("vgg16", 128, "infer", batch_size=3) | {"case": "far", "data": "a", "variant": "b"},
        case_entry("alexnet", 32, "train")]
    sides = [side("one", record(tmp_path, ENTRY)), side("other", record(tmp_path, *others, ENTRY | change))]
    assert unmatched_cases(sides).iloc[0].to_list() == [ENTRY["case"], "one", "other", why]


def test_options_tell_cases_apart(tmp_path: Path) -> None:
    compiled = record(tmp_path, ENTRY, options={"compiled": True})
    unmatched = unmatched_cases([side("one", record(tmp_path, ENTRY)), side("other", compiled)])
    assert unmatched["why"].to_list() == ["compiled no here, yes there", "compiled yes here, no there"]
    cold, hot = (Operations(tmp_path, options={"hot": hot}).add("gemm:8x8x8", {"forward": 0.1}).run()
                 for hot in (False, True))
    sides = [side("cold", cold), side("hot", hot)]
    assert matched_cases(sides).empty
    assert unmatched_cases(sides)["why"].to_list() == [
        "inputs hot in a cache no here, yes there", "inputs hot in a cache yes here, no there"]
    assert matched_cases([side("one", hot), side("other", hot)])["side"].to_list() == ["one", "other"]


def test_a_group_without_cases_lacks_all(tmp_path: Path) -> None:
    sides = [side("one", record(tmp_path, ENTRY)), side("none", record(tmp_path))]
    assert unmatched_cases(sides)["why"].to_list() == ["it has no cases"]
    tables = [matched_cases(sides), metric_ratios(sides), speedups(sides), geometric_means(sides, "workload")]
    assert all(table.empty for table in [*tables, *(ratios(sides, by) for by in RATIOS_BY)])


def test_what_the_baseline_lacks_is_listed(tmp_path: Path) -> None:
    sides = [side("a", record(tmp_path, OTHER)), side("b", record(tmp_path, ENTRY, OTHER)),
             side("c", record(tmp_path, ENTRY))]  # fmt: skip
    assert set(matched_cases(sides)["case"]) == {OTHER["case"]}
    assert unmatched_cases(sides)[["case", "side", "missing_in"]].to_numpy().tolist() == [
        [ENTRY["case"], "b", "a"], [OTHER["case"], "a", "c"], [ENTRY["case"], "c", "a"]]


SMALLER = case_entry("vgg16", 32, "train", batch_size=4)
INFERENCE = [case_entry("vgg16", 32, "infer", batch_size=size) for size in (4, 8)]


def test_cases_that_differ_alike_are_matched_where_none_is_equal(tmp_path: Path) -> None:
    sides = [side("small", record(tmp_path, SMALLER, INFERENCE[0])), side("large", record(tmp_path, ENTRY,
                                                                                          INFERENCE[1]))]
    relaxed = ignoring_differences(sides)
    assert [each.ignored for each in relaxed] == [{"batch_size"}] * 2
    matched = matched_cases(relaxed)
    assert matched[["case", "run_case"]].to_numpy().tolist() == [
        [f"vgg16-32-{mode}-fp32-cpu", f"vgg16-32-b{size}-{mode}-fp32-cpu"]
        for mode in ("train", "infer") for size in (4, 8)]
    assert ignored_differences(relaxed).to_numpy().tolist() == [
        ["batch size", "small", "4"], ["batch size", "large", "8"]]
    assert ignored_differences(sides).empty


def test_a_case_without_a_counterpart_stays_without_one(tmp_path: Path) -> None:
    relaxed = ignoring_differences([side("small", record(tmp_path, SMALLER, INFERENCE[0])),
                                    side("large", record(tmp_path, ENTRY))])
    assert relaxed[0].ignored == {"batch_size"}
    assert matched_cases(relaxed)["case"].unique().tolist() == ["vgg16-32-train-fp32-cpu"]
    assert unmatched_cases(relaxed)["why"].to_list() == ["mode infer here, train there"]


@pytest.mark.parametrize(("base", "other"), [
    ([ENTRY], [ENTRY, SMALLER]),  # one is equal
    ([SMALLER], [ENTRY, case_entry("vgg16", 32, "train", batch_size=16)]),  # which of the two would it be?
    ([ENTRY], [case_entry("alexnet", 32, "train")]),
    ([ENTRY], []),
])
def test_no_difference_is_ignored_where_a_case_is_equal_or_has_two_counterparts(
        tmp_path: Path, base: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    sides = [side("one", record(tmp_path, *base)), side("other", record(tmp_path, *other))]
    assert ignoring_differences(sides) == sides
