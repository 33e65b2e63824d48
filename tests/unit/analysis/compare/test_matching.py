"""Which cases of several sides are the same, and how the nearest of those that are not differs."""

from pathlib import Path
from typing import Any

import pytest
from support.compared import on_device, record, side
from support.operation_records import Operations
from support.records import case_entry

from charact.analysis.compare import (
    RATIOS_BY,
    geometric_means,
    matched_cases,
    metric_ratios,
    ratios,
    speedups,
    unmatched_cases,
)


def test_a_case_is_the_same_on_another_device(tmp_path: Path) -> None:
    entry = case_entry("vgg16", 32, "train")
    sides = [side("cpu", record(tmp_path, entry)), side("gpu", record(tmp_path, on_device(entry, "cuda:0")))]
    assert matched_cases(sides)[["case", "side", "run", "run_case"]].to_numpy().tolist() == [
        ["vgg16-32-b8-train-fp32", "cpu", 0, "vgg16-32-b8-train-fp32-cpu"],
        ["vgg16-32-b8-train-fp32", "gpu", 0, "vgg16-32-b8-train-fp32-cuda0"],
    ]
    assert unmatched_cases(sides).empty


def test_repeats_of_a_side_stand_together(tmp_path: Path) -> None:
    runs = [record(tmp_path, case_entry("vgg16", 32, "train")) for _ in range(3)]
    matched = matched_cases([side("one", *runs[:2]), side("other", runs[2])])
    assert matched[["side", "run"]].to_numpy().tolist() == [["one", 0], ["one", 1], ["other", 0]]
    assert set(matched["case"]) == {"vgg16-32-b8-train-fp32-cpu"}


@pytest.mark.parametrize(("change", "why"), [
    ({"batch_size": 16}, "batch size 8 here, 16 there"),
    ({"mode": "infer"}, "mode train here, infer there"),
    ({"precision": "bf16", "rank": 1}, "precision fp32 here, bf16 there, rank 0 here, 1 there"),
    ({"variant": ""}, "variant imagenet here, unknown there"),
    ({"workload": "alexnet"}, "it has no case of vgg16"),
    ({"world_size": 2}, "world size 1 here, 2 there"),
])
def test_the_nearest_case_tells_why(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    entry = case_entry("vgg16", 32, "train")
    far = case_entry("vgg16", 64, "infer", batch_size=3) | {"case": "far", "data": "a", "variant": "b"}
    other = record(tmp_path, far, entry | change | {"case": "near"})
    found = unmatched_cases([side("one", record(tmp_path, entry)), side("other", other)])
    if "workload" in change:
        other = record(tmp_path, entry | change)
        found = unmatched_cases([side("one", record(tmp_path, entry)), side("other", other)])
    assert found.iloc[0].to_list() == [entry["case"], "one", "other", why]


def test_options_tell_cases_apart(tmp_path: Path) -> None:
    entry = case_entry("vgg16", 32, "train")
    compiled = record(tmp_path, entry, options={"compiled": True})
    found = unmatched_cases([side("one", record(tmp_path, entry)), side("other", compiled)])
    assert found["why"].to_list() == ["compiled no here, yes there", "compiled yes here, no there"]


def test_a_side_without_cases_lacks_all(tmp_path: Path) -> None:
    sides = [side("one", record(tmp_path, case_entry("vgg16", 32, "train"))), side("none", record(tmp_path))]
    assert matched_cases(sides).empty
    assert unmatched_cases(sides)["why"].to_list() == ["it has no cases"]
    assert all(ratios(sides, by).empty for by in RATIOS_BY)
    assert metric_ratios(sides).empty
    assert speedups(sides).empty
    assert geometric_means(sides, "workload").empty


def test_what_the_baseline_lacks_is_listed(tmp_path: Path) -> None:
    one, both = case_entry("vgg16", 32, "train"), case_entry("vgg16", 64, "train")
    sides = [side("a", record(tmp_path, both)), side("b", record(tmp_path, one, both)),
             side("c", record(tmp_path, one))]  # fmt: skip
    assert set(matched_cases(sides)["case"]) == {both["case"]}
    assert unmatched_cases(sides)[["case", "side", "missing_in"]].to_numpy().tolist() == [
        [one["case"], "b", "a"], [both["case"], "a", "c"], [one["case"], "c", "a"]]


def test_the_same_case_twice_in_a_run_is_matched_in_order(tmp_path: Path) -> None:
    entry = case_entry("vgg16", 32, "train")
    run = record(tmp_path, on_device(entry, "cuda:0"), on_device(entry, "cuda:1"))
    matched = matched_cases([side("one", run), side("other", run)])
    assert matched["run_case"].to_list() == [
        "vgg16-32-b8-train-fp32-cuda0", "vgg16-32-b8-train-fp32-cuda0",
        "vgg16-32-b8-train-fp32-cuda1", "vgg16-32-b8-train-fp32-cuda1"]


def test_hot_operations_are_not_matched_with_cold_ones(tmp_path: Path) -> None:
    cold, hot = (Operations(tmp_path, options={"hot": hot}).add("gemm:8x8x8", {"forward": 0.1}).run()
                 for hot in (False, True))
    sides = [side("cold", cold), side("hot", hot)]
    assert matched_cases(sides).empty
    assert unmatched_cases(sides)["why"].to_list() == [
        "inputs hot in a cache no here, yes there", "inputs hot in a cache yes here, no there"]
    assert matched_cases([side("one", hot), side("other", hot)])["side"].to_list() == ["one", "other"]
