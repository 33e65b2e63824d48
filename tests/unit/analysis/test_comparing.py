"""Sides against a baseline: which cases are matched, and the ratios, metrics and speedups of records made by hand."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.compared import CASE, scattered, side
from support.operation_records import Operations
from support.records import case_entry, manifest, write_inference, write_record, write_training

from charact.analysis.comparing import (
    METRICS,
    RATIOS_BY,
    Side,
    geometric_means,
    matched_cases,
    metric_ratios,
    ratios,
    speedups,
    unmatched_cases,
)
from charact.errors import UserError
from charact.references import reference
from charact.store import Run, load_run
from charact.writer import RunWriter

K80, P100 = "reference:northeastern-k80", "reference:northeastern-p100"


@pytest.fixture(scope="module")
def published() -> list[Side]:
    return [Side(name, (reference(name.removeprefix("reference:")),)) for name in (K80, P100)]


@pytest.fixture(scope="module")
def base_and_new(tmp_path_factory: pytest.TempPathFactory) -> list[Side]:
    """60 iterations of 100 ms, and of 105 ms: the backward pass takes 10 % longer."""
    out = tmp_path_factory.mktemp("scattered")
    return [side("base", scattered(out)), side("new", scattered(out, {"backward": 1.1}, seed=1))]


def record(out: Path, *entries: dict[str, Any], **changes: Any) -> Run:
    """A run of cases without any table."""
    writer = RunWriter(out, "some", manifest("profile") | changes)
    for entry in entries:
        writer.add_case(entry, {})
    writer.close("complete")
    return load_run(writer.publish())


def edited(path: Path, change: Any) -> Run:
    """A run whose manifest was changed after it was written."""
    described = json.loads((path / "run.json").read_text())
    change(described)
    (path / "run.json").write_text(json.dumps(described))
    return load_run(path)


def on_device(entry: dict[str, Any], device: str) -> dict[str, Any]:
    return entry | {"case": entry["case"].removesuffix("cpu") + device.replace(":", ""), "device": device}


class TestMatching:
    def test_a_case_is_the_same_on_another_device(self, tmp_path: Path) -> None:
        entry = case_entry("vgg16", 32, "train")
        sides = [side("cpu", record(tmp_path, entry)), side("gpu", record(tmp_path, on_device(entry, "cuda:0")))]
        assert matched_cases(sides)[["case", "side", "run", "run_case"]].to_numpy().tolist() == [
            ["vgg16-32-b8-train-fp32", "cpu", 0, "vgg16-32-b8-train-fp32-cpu"],
            ["vgg16-32-b8-train-fp32", "gpu", 0, "vgg16-32-b8-train-fp32-cuda0"],
        ]
        assert unmatched_cases(sides).empty

    def test_repeats_of_a_side_stand_together(self, tmp_path: Path) -> None:
        runs = [record(tmp_path, case_entry("vgg16", 32, "train")) for _ in range(3)]
        matched = matched_cases([side("one", *runs[:2]), side("other", runs[2])])
        assert matched[["side", "run"]].to_numpy().tolist() == [["one", 0], ["one", 1], ["other", 0]]
        assert set(matched["case"]) == {"vgg16-32-b8-train-fp32-cpu"}

    @pytest.mark.parametrize(("change", "why"), [
        ({"batch_size": 16}, "batch size 8 here, 16 there"),
        ({"mode": "infer"}, "mode train here, infer there"),
        ({"precision": "bf16", "rank": 1}, "precision fp32 here, bf16 there, rank 0 here, 1 there"),
        ({"variant": ""}, "variant imagenet here, not told there"),
        ({"workload": "alexnet"}, "it has no case of vgg16"),
        ({"world_size": 2}, "world size 1 here, 2 there"),
    ])
    def test_the_nearest_case_tells_why(self, tmp_path: Path, change: dict[str, Any], why: str) -> None:
        entry = case_entry("vgg16", 32, "train")
        far = case_entry("vgg16", 64, "infer", batch_size=3) | {"case": "far", "data": "a", "variant": "b"}
        other = record(tmp_path, far, entry | change | {"case": "near"})
        found = unmatched_cases([side("one", record(tmp_path, entry)), side("other", other)])
        if "workload" in change:
            other = record(tmp_path, entry | change)
            found = unmatched_cases([side("one", record(tmp_path, entry)), side("other", other)])
        assert found.iloc[0].to_list() == [entry["case"], "one", "other", why]

    def test_options_tell_cases_apart(self, tmp_path: Path) -> None:
        entry = case_entry("vgg16", 32, "train")
        compiled = record(tmp_path, entry, options={"compiled": True})
        found = unmatched_cases([side("one", record(tmp_path, entry)), side("other", compiled)])
        assert found["why"].to_list() == ["compiled no here, yes there", "compiled yes here, no there"]

    def test_a_side_without_cases_lacks_all(self, tmp_path: Path) -> None:
        sides = [side("one", record(tmp_path, case_entry("vgg16", 32, "train"))), side("none", record(tmp_path))]
        assert matched_cases(sides).empty
        assert unmatched_cases(sides)["why"].to_list() == ["it has no cases"]
        assert all(ratios(sides, by).empty for by in RATIOS_BY)
        assert metric_ratios(sides).empty
        assert speedups(sides).empty
        assert geometric_means(sides, "workload").empty

    def test_what_the_baseline_lacks_is_listed(self, tmp_path: Path) -> None:
        one, both = case_entry("vgg16", 32, "train"), case_entry("vgg16", 64, "train")
        sides = [side("a", record(tmp_path, both)), side("b", record(tmp_path, one, both)),
                 side("c", record(tmp_path, one))]  # fmt: skip
        assert set(matched_cases(sides)["case"]) == {both["case"]}
        assert unmatched_cases(sides)[["case", "side", "missing_in"]].to_numpy().tolist() == [
            [one["case"], "b", "a"], [both["case"], "a", "c"], [one["case"], "c", "a"]]

    def test_the_same_case_twice_in_a_run_is_matched_in_order(self, tmp_path: Path) -> None:
        entry = case_entry("vgg16", 32, "train")
        run = record(tmp_path, on_device(entry, "cuda:0"), on_device(entry, "cuda:1"))
        matched = matched_cases([side("one", run), side("other", run)])
        assert matched["run_case"].to_list() == [
            "vgg16-32-b8-train-fp32-cuda0", "vgg16-32-b8-train-fp32-cuda0",
            "vgg16-32-b8-train-fp32-cuda1", "vgg16-32-b8-train-fp32-cuda1"]


class TestRatios:
    def test_a_slower_phase_is_found(self, base_and_new: list[Side]) -> None:
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

    def test_what_the_profiler_saw_is_scaled_to_the_timing(self, base_and_new: list[Side]) -> None:
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

    def test_several_runs_judge_operators(self, tmp_path: Path) -> None:
        base = side("base", *(scattered(tmp_path, seed=seed) for seed in range(4)))
        new = side("new", *(scattered(tmp_path, {"backward": 1.1}, seed=seed) for seed in range(4, 8)))
        operators = ratios([base, new], "operator").set_index("operator")
        assert operators.index[operators["significant"]].to_list() == ["aten::mkldnn_convolution_backward"]
        assert operators["reason"].isna().all()
        case = ratios([base, new], "case").iloc[0]
        medians = [ratios([base, side("one", run)], "case")["time_s"][0] for run in new.runs]
        assert case["time_s"] == pytest.approx(math.prod(medians) ** 0.25)

    def test_a_part_that_one_side_lacks_has_no_ratio(self, tmp_path: Path) -> None:
        base = write_record(tmp_path, sizes=(32,), modes=("train",), layer="gone")
        new = write_record(tmp_path, sizes=(32,), modes=("train",), layer="come")
        layers = ratios([side("base", load_run(base)), side("new", load_run(new))], "layer").set_index("layer")
        assert layers.loc["gone", ["time_s", "ratio"]].isna().all()
        assert layers["reason"]["gone"] == "not here"
        assert layers["reason"]["come"] == "not in the baseline"

    def test_a_failed_case_has_its_reason(self, tmp_path: Path) -> None:
        base, new = case_entry("vgg16", 32, "train"), case_entry("vgg16", 32, "train", status="oom", reason="no room")
        sides = [side("base", record(tmp_path, base)), side("new", record(tmp_path, new))]
        assert ratios(sides, "case")["reason"].to_list() == ["no room"]
        assert ratios(sides[::-1], "case")["reason"].to_list() == ["in the baseline: no room"]

    def test_operations_are_compared_by_problem(self, tmp_path: Path) -> None:
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

    def test_an_unknown_part_is_refused(self, base_and_new: list[Side]) -> None:
        with pytest.raises(UserError, match="nothing is compared by 'stream': choose from case, phase,"):
            ratios(base_and_new, "stream")

    @pytest.mark.parametrize("by", RATIOS_BY)
    def test_columns_are_those_promised(self, base_and_new: list[Side], by: str) -> None:
        part = [] if by == "case" else [by]
        assert ratios(base_and_new, by).columns.to_list() == [
            "case", *part, "side", "base_s", "time_s", "ratio", "low", "high", "p_value", "significant", "reason"]

    @pytest.mark.parametrize("by", RATIOS_BY)
    def test_a_side_against_itself_is_exactly_one(self, base_and_new: list[Side], by: str) -> None:
        same = ratios([base_and_new[0], side("again", *base_and_new[0].runs)], by)
        assert (same["ratio"] == 1).all()
        assert not same["significant"].any()


class TestMetrics:
    def test_of_a_profile(self, tmp_path: Path) -> None:
        sides = [side("base", scattered(tmp_path)), side("new", scattered(tmp_path, activations=1.5))]
        found = metric_ratios(sides).set_index("metric")
        assert found.index.to_list() == list(METRICS)
        assert found["base"]["throughput"] == pytest.approx(8 / found["base"]["time"])
        memory = found.loc["peak_memory"]
        held = 1.02e8 * 3 + 1e6 + 4.0 * 8 * 3 * 32**2
        assert memory["base"] == pytest.approx(held + 1e3 * 32**2)
        assert memory["value"] == pytest.approx(held + 1.5e3 * 32**2)
        assert memory["significant"]
        assert memory["reason"] == "counted: it does not scatter"
        assert found["reason"][["accuracy", "total_time", "inference_time", "energy"]].to_list() == ["not measured"] * 4

    def test_a_pass_that_gave_nothing_says_why(self, tmp_path: Path) -> None:
        entry = case_entry("vgg16", 32, "train")
        entry["passes"] |= {"memory": {"status": "failed", "reason": "RuntimeError: no"},
                            "counters": {"status": "skipped", "reason": "not asked for: --counters auto"}}  # fmt: skip
        run = record(tmp_path, entry)
        reasons = metric_ratios([side("base", run), side("new", run)]).set_index("metric")["reason"]
        assert reasons["peak_memory"] == "RuntimeError: no"
        assert reasons["energy"] == "not asked for: --counters auto"
        assert reasons["time"] == "not measured"

    def test_a_rate_is_the_time_turned_over(self, base_and_new: list[Side]) -> None:
        found = metric_ratios(base_and_new).set_index("metric")
        time, rate = found.loc["time"], found.loc["throughput"]
        assert rate["ratio"] == pytest.approx(1 / time["ratio"])
        assert (rate["low"], rate["high"]) == (pytest.approx(1 / time["high"]), pytest.approx(1 / time["low"]))
        assert rate["p_value"] == pytest.approx(time["p_value"])

    def test_of_a_training(self, tmp_path: Path) -> None:
        run = load_run(write_training(tmp_path, diverged=False))
        worse = edited(write_training(tmp_path, diverged=False), lambda told: [
            entry["passes"]["training"]["best"].update(value=0.92) for entry in told["cases"]])  # fmt: skip
        found = metric_ratios([side("base", run), side("new", worse)])
        first = found[found["case"] == found["case"][0]].set_index("metric")
        assert first["base"]["total_time"] == 62.5
        assert first["base"]["time"] == 12.5
        assert first["base"]["throughput"] == 800
        assert first["reason"]["total_time"] == "fewer than 6 epochs"
        # The logarithm of a share p of n samples has the variance (1 - p) / (p n).
        accuracy = first.loc["accuracy"]
        error = math.hypot(math.sqrt(0.04 / 0.96 / 2000), math.sqrt(0.08 / 0.92 / 2000))
        assert accuracy["ratio"] == pytest.approx(0.92 / 0.96)
        assert math.log(accuracy["high"] / accuracy["low"]) / 2 == pytest.approx(1.96 * error, rel=0.03)
        assert accuracy["significant"]

    def test_totals_of_different_work_do_not_compare(self, tmp_path: Path, published: list[Side]) -> None:
        ten = published[0]
        one = copy.deepcopy(published[1].runs[0].manifest)
        for entry in one["cases"]:
            entry["passes"]["training"]["num_epochs"] = 1
        shorter = Run(tmp_path, one, _tables=published[1].runs[0]._tables)
        found = metric_ratios([ten, side("short", shorter)]).query("metric == 'total_time'")
        assert found["ratio"].isna().all()
        assert set(found["reason"]) == {"1 epoch here, 10 epochs in the baseline: they do not compare"}
        assert set(speedups([ten, side("short", shorter)])["metric"]) == {"time"}

    def test_of_an_inference(self, tmp_path: Path) -> None:
        run = load_run(write_inference(tmp_path))
        found = metric_ratios([side("base", run), side("new", run)])
        first = found[found["case"] == found["case"][0]].set_index("metric")
        assert first["base"]["inference_time"] == pytest.approx(0.21 + 5.05)
        assert first["base"]["accuracy"] == 0.93
        assert first["base"]["time"] == pytest.approx(0.0505)
        assert (first["ratio"].dropna() == 1).all()

    def test_energy_of_other_meters_does_not_compare(self, tmp_path: Path) -> None:
        runs = []
        for source, joules in (("rapl", 50.0), ("nvml", 20.0), ("rapl", 40.0)):
            writer = RunWriter(tmp_path, "some", manifest("profile"))
            entry = case_entry("vgg16", 32, "train")
            entry["passes"]["counters"] = {"status": "ok", "reason": None, "num_iterations": 10, "duration_s": 1.0,
                                           "sources": {source: {"status": "ok", "reason": None, "missing": {}}}}
            counter = {"phase": None, "time_s": None, "rank": 0, "device": "cpu", "source": source,
                       "counter": "energy_j", "value": joules}  # fmt: skip
            writer.add_case(entry, {"counters": [counter]})
            writer.close("complete")
            runs.append(load_run(writer.publish()))
        sides = [side(label, run) for label, run in zip("abc", runs, strict=True)]
        found = metric_ratios(sides).query("metric == 'energy'").set_index("side")
        assert found["base"].to_list() == [5.0, 5.0]
        assert pd.isna(found["ratio"]["b"])
        assert found["reason"]["b"] == "nvml here, rapl in the baseline: they do not compare"
        assert found["ratio"]["c"] == pytest.approx(0.8)
        assert not found["significant"]["c"]


class TestSpeedups:
    def test_the_published_table_comes_out(self, published: list[Side]) -> None:
        table = speedups(published).pivot(index="workload", columns="data", values="speedup").round(4)
        assert table.loc["googlenet", ["cifar10", "mnist", "kmnist"]].to_list() == [2.7811, 2.8301, 2.8246]
        assert table.loc["resnet18", ["cifar10", "mnist", "kmnist"]].to_list() == [2.6290, 2.8175, 2.8684]

    def test_the_published_means_come_out(self, published: list[Side]) -> None:
        by_workload = geometric_means(published, "workload").set_index("workload")
        assert by_workload["speedup"].round(4).to_dict() == {"googlenet": 2.8118, "resnet18": 2.7697}
        everything = geometric_means(published).iloc[0]
        assert round(everything["speedup"], 4) == 2.7907
        assert everything["num_cases"] == 6
        assert everything["low"] < 2.7907 < everything["high"]

    def test_the_mean_of_one_case_is_its_speedup(self, base_and_new: list[Side]) -> None:
        mean, case = geometric_means(base_and_new).iloc[0], speedups(base_and_new).iloc[0]
        assert mean["num_cases"] == 1
        assert mean[["speedup", "low", "high"]].to_list() == case[["speedup", "low", "high"]].to_list()
        ratio = ratios(base_and_new, "case").iloc[0]
        assert case["speedup"] == pytest.approx(1 / ratio["ratio"])
        assert case["low"] == pytest.approx(1 / ratio["high"])

    def test_the_interval_is_students_of_the_logarithms(self, published: list[Side]) -> None:
        logs = [math.log(value) for value in (2.781103, 2.830069, 2.824629)]
        spread = math.sqrt(sum((log - sum(logs) / 3) ** 2 for log in logs) / 2)
        found = geometric_means(published, "workload").set_index("workload").loc["googlenet"]
        assert math.log(found["high"] / found["speedup"]) == pytest.approx(4.3027 * spread / math.sqrt(3), rel=1e-3)

    def test_a_case_without_times_counts_for_nothing(self, tmp_path: Path) -> None:
        run = record(tmp_path, case_entry("vgg16", 32, "train"))
        mean = geometric_means([side("one", run), side("other", run)]).iloc[0]
        assert mean["num_cases"] == 0
        assert pd.isna(mean["speedup"])
        assert mean["reason"] == "no case has a speedup"

    def test_an_unknown_group_is_refused(self, published: list[Side]) -> None:
        with pytest.raises(UserError, match="there is no mean by 'machine': choose from workload,"):
            geometric_means(published, "machine")

    @settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(order=st.permutations(range(6)))
    def test_the_order_of_cases_changes_nothing(self, published: list[Side], order: list[int]) -> None:
        run = published[1].runs[0]
        shuffled = run.manifest | {"cases": [run.manifest["cases"][number] for number in order]}
        again = [published[0], side(P100, Run(run.path, shuffled, _tables=run._tables))]
        pd.testing.assert_frame_equal(speedups(again), speedups(published))
        pd.testing.assert_frame_equal(geometric_means(again[::-1]).drop(columns="side"),
                                      geometric_means(published[::-1]).drop(columns="side"))  # fmt: skip
