from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.brick_runs import CASE, brick_run, composition, infer_run, skewed

from charact.bricks.analysis.construction import (
    BrickTimes,
    Construction,
    Correction,
    brick_case,
    construct,
    constructed_case,
    interval,
)
from charact.core.errors import UserError

NONE = "no correction was learned"
DIAMOND = [[], [0], [0], [1, 2]]
"""Pieces 1 and 2 read from 0, and 3 from both."""


def correction(**coefficients: float) -> Correction:
    neutral = {"factor": 1.0, "module_call_s": 0.0, "piece_s": 0.0, "backward_start_s": 0.0}
    return Correction(**{**neutral, **coefficients}, reasons={}, models=["a", "b"], plain_error_frac=0.1,
                      error_frac=0.01, worst_error_frac=0.02)  # fmt: skip


def latencies(construction: Construction) -> dict[tuple[str, str], float]:
    return {(row["strategy"], row["phase"]): row["latency_s"] for row in construction.latencies}


def intervals(construction: Construction) -> dict[str, tuple[float, float]]:
    return {row["strategy"]: (row["low_s"], row["high_s"]) for row in construction.latencies if row["phase"] == "all"}


def test_latencies_of_a_graph_with_two_branches_are_known(tmp_path: Path) -> None:
    run = infer_run(tmp_path, {"a": 0.010, "b": 0.004, "c": 0.003})
    found = construct(composition(["a", "b", "c", "a"], DIAMOND, num_module_calls=7), BrickTimes(run, CASE),
                      correction(factor=0.9, module_call_s=1e-4, piece_s=1e-5))  # fmt: skip
    assert latencies(found) == pytest.approx({
        ("sequential", "all"): 0.027, ("critical_path", "all"): 0.024, ("corrected", "all"): 0.0243 + 7e-4 + 4e-5})
    assert found.sum_s == pytest.approx(0.027)
    assert [row["reason"] for row in found.latencies] == [None] * 3
    assert [(row["piece"], row["brick"], row["phase"], row["time_s"], row["num_uses_here"])
            for row in found.pieces] == [(0, "a", "forward", 0.010, 1), (1, "b", "forward", 0.004, 1),
                                         (2, "c", "forward", 0.003, 1), (3, "a", "forward", 0.010, 1)]  # fmt: skip


def test_a_training_is_constructed_by_phase(tmp_path: Path) -> None:
    """Starts of backward passes are taken from each, and added once; what has no place in the graph counts in full."""
    run = brick_run(tmp_path, {
        "a": {"forward": 0.010, "backward": 0.0205}, "b": {"forward": 0.004},
        "c": {"forward": 0.003, "backward": 0.0065}, "sum": {"forward": 0.002}, "step": {"update": 0.001},
    }, mode="train", facts={"backward_start_s": 0.0005, "step_start_s": 0.0001})  # fmt: skip
    times = BrickTimes(run, CASE.replace("infer", "train"))
    model = composition(["a", "b", "c", "a"], DIAMOND, mode="train", gradient_sums=(("sum", 2),),
                        updates=(("step", 3),))  # fmt: skip
    found = construct(model, times, NONE)
    assert latencies(found) == pytest.approx({
        ("sequential", "forward"): 0.027, ("sequential", "backward"): 0.020 * 2 + 0.006 + 0.004 + 0.0005,
        ("sequential", "update"): 0.0031, ("sequential", "all"): 0.027 + 0.0505 + 0.0031,
        ("critical_path", "forward"): 0.024, ("critical_path", "backward"): 0.046 + 0.0045,
        ("critical_path", "update"): 0.0031, ("critical_path", "all"): 0.024 + 0.0505 + 0.0031,
        ("corrected", "all"): None}, nan_ok=True)
    assert found.num_backward_starts == 3
    by_phase = [(row["phase"], row["piece"], row["num_uses_here"], row["time_s"]) for row in found.pieces]
    assert by_phase[4:] == [
        ("backward", 3, 1, pytest.approx(0.020)), ("backward", 2, 1, pytest.approx(0.006)),
        ("backward", 0, 1, pytest.approx(0.020)), ("backward", None, 2, pytest.approx(0.004)),
        ("update", None, 3, pytest.approx(0.003))]


def test_what_all_rounds_share_does_not_cancel_in_a_sum(tmp_path: Path) -> None:
    """All bricks slow down together: the sum is known no better than each of them."""
    pace = np.random.default_rng(1).normal(1, 0.05, 12)
    times = {f"b{number}": (pace * number).tolist() for number in range(1, 41)}
    bricks = BrickTimes(infer_run(tmp_path, times), CASE)
    low, high = intervals(construct(composition(["b10"]), bricks, NONE))["sequential"]
    all_low, all_high = intervals(construct(composition(list(times)), bricks, NONE))["sequential"]
    assert (all_low, all_high) == pytest.approx((low * 82, high * 82))
    assert 0.9 < low / 10 < np.median(pace) < high / 10 < 1.1


@pytest.mark.slow
def test_the_interval_holds_the_truth_about_as_often_as_it_says(tmp_path: Path) -> None:
    generator, held = np.random.default_rng(2), 0
    for number in range(40):
        times = {f"b{brick}": skewed(generator, 0.001, 25) for brick in range(60)}
        bricks = BrickTimes(infer_run(tmp_path / str(number), times), CASE)
        low, high = intervals(construct(composition(list(times)), bricks, NONE))["sequential"]
        held += low <= 0.060 <= high
    assert held >= 32  # 95 % of 40 are 38; medians of skewed times lie a little off


def test_few_rounds_give_no_interval(tmp_path: Path) -> None:
    found = construct(composition(["a"]), BrickTimes(infer_run(tmp_path, {"a": [1.0, 2.0, 3.0, 4.0, 5.0]}), CASE), NONE)
    assert latencies(found)["sequential", "all"] == 3.0
    assert intervals(found)["sequential"] == (None, None)


def test_rounds_that_one_brick_lacks_are_drawn_of_none(tmp_path: Path) -> None:
    whole = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 100.0, 100.0, 100.0]
    bricks = BrickTimes(infer_run(tmp_path, {"a": whole, "b": whole[:6]}), CASE)
    found = construct(composition(["a", "b"]), bricks, NONE)
    assert latencies(found)["sequential", "all"] == 5.0 + 3.5
    low, high = intervals(found)["sequential"]
    assert 8.5 - 5 <= low < 8.5 < high <= 8.5 + 5


@pytest.mark.parametrize(("device_s", "clock", "latency_s"), [(0.03, "device_s", 0.03), (0.001, "host_s", 0.01)])
def test_on_a_device_the_slower_side_counts(tmp_path: Path, device_s: float, clock: str, latency_s: float) -> None:
    run = infer_run(tmp_path, {"a": 0.01}, device_s={"a": device_s})
    found = construct(composition(["a"]), BrickTimes(run, CASE), NONE)
    assert (found.clock, latencies(found)["sequential", "all"]) == (clock, latency_s)


def test_what_starts_once_is_of_the_clock_that_counts(tmp_path: Path) -> None:
    run = brick_run(tmp_path, {"a": {"forward": 0.010, "backward": 0.025}}, mode="train", device_s={"a": 0.008},
                    facts={"backward_start_s": {"host_s": 0.005, "device_s": 0.001}})  # fmt: skip
    found = construct(composition(["a", "a"], mode="train"), BrickTimes(run, CASE.replace("infer", "train")), NONE)
    assert found.clock == "host_s"
    assert latencies(found)["sequential", "backward"] == pytest.approx(2 * 0.020 + 0.005)
    assert constructed_case(found, NONE)[0].passes.construct.backward_start_s == 0.005


def test_an_interval_of_times_has_no_end_below_zero(tmp_path: Path) -> None:
    times = [1.0, 1.0, 1.0, 1.0, 1.0, 20.0, 20.0, 20.0, 20.0]
    low, high = intervals(construct(composition(["a"]), BrickTimes(infer_run(tmp_path, {"a": times}), CASE), NONE)
                          )["sequential"]  # fmt: skip
    assert 0 < low <= 1.0 <= high <= 20.0
    assert interval(np.array([1.0, 0.1, 0.1, 3.0, 3.0, 3.0, 3.0])) == pytest.approx((1 / 30, 1.0))
    assert interval(np.zeros(9)) is None


def test_a_model_too_short_for_its_correction_has_no_corrected_latency(tmp_path: Path) -> None:
    found = construct(composition(["a"]), BrickTimes(infer_run(tmp_path, {"a": 2e-6}), CASE), correction(piece_s=-4e-6))
    assert found.latencies[-1]["latency_s"] is None
    assert "too short" in found.latencies[-1]["reason"]


def test_bricks_that_failed_are_named_with_why(tmp_path: Path) -> None:
    failed = {name: {"status": "oom", "reason": "8 GB asked for"} for name in ["f1", "f2", "f3", "f4", "f5"]}
    times = BrickTimes(infer_run(tmp_path, {"a": 0.01}, rows=failed), CASE)
    found = construct(composition(["a", *failed, "f1"]), times, correction())
    assert found.reason == ("brick f1 has no time (oom: 8 GB asked for); brick f2 has no time (oom: 8 GB asked for); "
                            "brick f3 has no time (oom: 8 GB asked for); 2 more")
    assert found.sum_s is None
    assert {(row["latency_s"], row["reason"]) for row in found.latencies} == {(None, found.reason)}
    assert {row["strategy"] for row in found.latencies} == {"sequential", "critical_path", "corrected"}
    assert [row["time_s"] for row in found.pieces] == [0.01, *[None] * 6]


def test_bricks_that_the_run_lacks_are_counted_and_told_by_type(tmp_path: Path) -> None:
    times = BrickTimes(infer_run(tmp_path, {"a": 0.01}), CASE)
    found = construct(composition(["a", "x", "y", "x"]), times, NONE, {"x": ["relu", "conv2d"], "y": ["conv2d"]})
    assert found.reason == ("the run lacks 3 of 4 segments of conv2d, relu (brick x, brick y): extend the suite by the "
                            "model and run it")


def test_updates_that_the_run_lacks_are_counted(tmp_path: Path) -> None:
    times = BrickTimes(brick_run(tmp_path, {"a": {"forward": 0.01}}, mode="train"), CASE.replace("infer", "train"))
    model = composition(["a"], mode="train", updates=(("u", 3), ("v", 1)), gradient_sums=(("a", 1),))
    found = construct(model, times, NONE)
    assert found.reason is not None
    assert found.reason.startswith("the run lacks 2 of 3 kinds of updates and gradient sums (brick u, brick v):")
    assert [row["phase"] for row in found.latencies] == ["forward", "backward", "update", "all"] * 2 + ["all"]


@pytest.mark.parametrize(("facts", "message"), [
    ({"mode": "train"}, "is train in fp32, .* timed infer in fp32: charact bricks run --mode train --precision fp32$"),
    ({"precision": "tf32"}, "is infer in tf32, .* timed infer in fp32: .* run --mode infer --precision tf32$"),
    ({"g": 2}, "is cut by 'chains' at G = 2, the bricks of .* by 'chains' at G = 1: run a suite with the same cut"),
    ({"method": "heavy"}, "is cut by 'heavy' at G = 1"),
])
def test_a_model_of_another_kind_is_refused(tmp_path: Path, facts: dict[str, object], message: str) -> None:
    run = infer_run(tmp_path, {"a": 0.01})
    assert brick_case(run, composition(["a"])) == CASE
    assert brick_case(run, composition(["a"], precision="bf16")) == CASE
    with pytest.raises(UserError, match=message) as caught:
        brick_case(run, composition(["a"], **facts))
    assert "\n" not in str(caught.value)


def test_a_run_of_something_else_is_refused(tmp_path: Path) -> None:
    run = infer_run(tmp_path, {"a": 0.01})
    run.manifest["cases"][0]["passes"] = {}
    with pytest.raises(UserError, match="is not a run of a suite: charact bricks run makes one"):
        brick_case(run, composition(["a"]))
    with pytest.raises(UserError, match="is not a run of a suite"):
        BrickTimes(run, CASE)


@st.composite
def graphs(draw: st.DrawFn) -> list[list[int]]:
    size = draw(st.integers(1, 8))
    return [draw(st.lists(st.integers(0, number - 1), unique=True, max_size=3)) if number else []
            for number in range(size)]


@given(edges=graphs(), seed=st.integers(0, 99))
def test_a_path_is_no_longer_than_the_sum_and_scales_with_the_times(
        tmp_path_factory: pytest.TempPathFactory, edges: list[list[int]], seed: int) -> None:
    generator, names = np.random.default_rng(seed), [f"b{number}" for number in range(len(edges))]
    times = {name: skewed(generator, float(generator.uniform(1e-5, 1e-2))) for name in names}

    def constructed(factor: float) -> Construction:
        scaled = {name: [factor * time_s for time_s in each] for name, each in times.items()}
        run = infer_run(tmp_path_factory.mktemp("run"), scaled)
        return construct(composition(names, edges), BrickTimes(run, CASE), correction(factor=0.9))

    once, twice = constructed(1), constructed(2)
    sums, paths = latencies(once)["sequential", "all"], latencies(once)["critical_path", "all"]
    assert max(np.median(each) for each in times.values()) <= paths * (1 + 1e-12)
    assert paths <= sums * (1 + 1e-12)
    for row, other in zip(once.latencies, twice.latencies, strict=True):
        assert other["latency_s"] == pytest.approx(2 * row["latency_s"])
        assert (other["low_s"], other["high_s"]) == pytest.approx((2 * row["low_s"], 2 * row["high_s"]))
        assert row["low_s"] <= row["latency_s"] <= row["high_s"]


@settings(deadline=None)
@given(order=st.permutations(range(4)))
def test_without_branches_only_the_bricks_count(tmp_path_factory: pytest.TempPathFactory, order: list[int]) -> None:
    run = infer_run(tmp_path_factory.mktemp("run"), {f"b{number}": 0.001 * 2**number for number in range(4)})
    found = construct(composition([f"b{number}" for number in order]), BrickTimes(run, CASE), NONE)
    assert latencies(found)["sequential", "all"] == pytest.approx(0.015)
    assert latencies(found)["critical_path", "all"] == pytest.approx(0.015)


def test_the_longest_path_goes_through_what_is_written_in_place(tmp_path: Path) -> None:
    run = infer_run(tmp_path, {"a": 0.001, "b": 0.002, "c": 0.004})
    apart = composition("abc", [[], [], []])
    pieces = (*apart.pieces[:2], replace(apart.pieces[2], after=(1,)))
    for model, path_s in ((apart, 0.004), (replace(apart, pieces=pieces), 0.006)):
        found = construct(model, BrickTimes(run, CASE), NONE)
        assert latencies(found)["critical_path", "all"] == pytest.approx(path_s)
