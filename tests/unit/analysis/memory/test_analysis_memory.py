"""Memory against the input, through an iteration, predicted beside measured, and what fits: known numbers."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import memory_records as made
from support import records

from charact.analysis.compare import Group, metric_ratios
from charact.analysis.memory.by_input_size import (
    case_series,
    growth_by_input_size,
    memory_steps,
    of_series,
    training_to_inference,
)
from charact.analysis.memory.composition import (
    is_memory_run,
    memory_by_layer,
    memory_composition,
    memory_needs,
    memory_peaks,
    memory_timeline,
    peak_moments,
    weights_and_intermediate,
)
from charact.analysis.memory.limits import (
    limited_cpu,
    memory_fits,
    memory_room,
    out_of_memory,
    out_of_memory_composition,
)
from charact.analysis.profile.case_summary import case_summary
from charact.record.reader import Run, load_run
from charact.record.schema import MEMORY_CATEGORIES

TRAIN, INFER = "resnet18-256-b8-train-fp32-cpu", "resnet18-256-b8-infer-fp32-cpu"
RAN_OUT, TOO_LARGE = "resnet18-384-b8-train-fp32-cpu", "resnet18-352-b8-train-fp32-cpu"
@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return load_run(made.write_memory(tmp_path_factory.mktemp("runs")))


def true_bytes(kind: str, mode: str, size: int) -> float:
    return sum(made.composition(kind, mode, size).values())


def measured_run(tmp_path: Path, *sizes: int) -> Run:
    """A run of trainings that were measured at these sizes."""
    return records.run_of(tmp_path, *((made.memory_entry("image", "train", size, measured=True),
                                       {"memory": made.memory_rows("image", "train", size, measured=True)})
                                      for size in sizes))  # fmt: skip


def test_composition_of_the_peak(run: Run) -> None:
    held = memory_composition(run).query("case == @TRAIN").set_index(["method", "category"])["bytes"]
    true = made.composition("image", "train", 256)
    assert held["measured"].to_dict() == true
    workspaces = made.WORKSPACE_FRAC * true["temporary"]
    off = made.WORKSPACE_ERROR_FRAC * workspaces
    assert held["predicted"].to_dict() == pytest.approx(true | {"temporary": true["temporary"] - off})
    rows = weights_and_intermediate(run).set_index(["case", "method"])
    train, held = rows.loc[TRAIN, "measured"], made.composition("image", "train", 256)
    assert train["weights_bytes"] == 4.4e7
    assert train["intermediate_bytes"] == held["activations"] + held["temporary"]
    assert train["ratio"] == pytest.approx(train["intermediate_bytes"] / 4.4e7)
    assert train[["weights_bytes", "intermediate_bytes", "rest_bytes"]].sum() == true_bytes("image", "train", 256)


def test_peaks_and_what_they_lack(run: Run) -> None:
    peaks = memory_peaks(run).set_index("case")
    both, predicted_bytes = peaks.loc[TRAIN], sum(made.predicted_parts("image", "train", 256).values())
    assert both["measured_bytes"] == true_bytes("image", "train", 256)
    assert both["predicted_bytes"] == pytest.approx(predicted_bytes)
    assert both["error_frac"] == pytest.approx(predicted_bytes / true_bytes("image", "train", 256) - 1)
    assert both["error_frac"] == pytest.approx(-0.0059, abs=5e-5)
    assert both["tensors_bytes"] + both["workspaces_bytes"] == pytest.approx(predicted_bytes)
    assert (both["workspaces_method"], both["num_measured_calls"]) == ("measured", 24)
    assert (both["is_within"], both["outside_bytes"]) == (1, 0)
    off = peaks.loc[INFER]
    assert off["is_within"] == 0  # 3.1 % off, with 2 % stated
    assert off["outside_bytes"] == pytest.approx(off["measured_bytes"] - 1.02 * off["predicted_bytes"])
    peaks = memory_peaks(run).set_index("case")
    assert peaks.loc["resnet18-32-b8-train-fp32-cpu", "measured_reason"] == "predicted only"
    assert peaks.loc[TOO_LARGE, "measured_reason"] == "predicted to need 749 MB of the 680 MB of tiny"
    assert peaks.loc[RAN_OUT, "measured_reason"] == "out of memory: asked for 120 MB"
    assert peaks.loc[[TOO_LARGE, RAN_OUT], ["error_frac", "is_within", "outside_bytes"]].isna().all(axis=None)
    assert peaks.loc[TRAIN, ["measured_reason", "predicted_reason"]].isna().all()


def test_series_and_growth_of_known_sizes(run: Run) -> None:
    series = case_series(run).set_index("case")
    assert series.loc[TRAIN, ["num_positions", "position"]].tolist() == [256**2, "pixel"]
    assert series.loc["rnn_lm-40-b20-train-fp32-cpu", ["num_positions", "position"]].tolist() == [40, "token"]
    growth = growth_by_input_size(run).set_index(["workload", "mode", "method"])
    train = growth.loc["resnet18", "train", "measured"]
    assert train["num_sizes"] == 4
    assert train["slope_bytes"] == pytest.approx(8 * 612)
    assert train["sample_slope_bytes"] == pytest.approx(612)
    assert train["fixed_bytes"] == pytest.approx(3 * 4.4e7 + 1e6)
    assert train[["slope_error_bytes", "fixed_error_bytes"]].tolist() == pytest.approx([0, 0], abs=1e-3)
    assert growth.loc[("rnn_lm", "infer", "predicted"), "num_sizes"] == 12
    assert growth.loc[("rnn_lm", "infer", "predicted"), "sample_slope_bytes"] == pytest.approx(16 + 0.95 * 50_000)
    assert growth["reason"].isna().all()
    assert set(growth["shape"]) == {"line"}
    assert memory_steps(run).empty
    growth = growth_by_input_size(run)
    first = next(growth.itertuples())
    assert len(of_series(growth, first)) == 2
    assert len(of_series(growth, first, ["workload"])) == 4


def run_of_peaks(directory: Path, *peaks: dict[str, float], first: int = 32) -> Run:
    """A run of trainings at 32, 48, 64, ... pixels whose estimated peaks have these bytes by category."""
    cases = []
    for number, held in enumerate(peaks):
        place = {"phase": "backward", "layer": f"layer{number}", "operator": "aten::convolution_backward"}
        rows = [{"kind": "peak", "method": "predicted", **place, "category": category, "bytes": num_bytes}
                for category, num_bytes in held.items()]  # fmt: skip
        cases.append((made.memory_entry("image", "train", first + 16 * number, measured=False), {"memory": rows}))
    return records.run_of(directory, *cases, options={"command": "memory"})


def test_growth_that_bends_a_little_is_a_line_with_an_interval(tmp_path: Path) -> None:
    true = [1e8 + 4e3 * size**2 for size in (32, 48, 64, 80)]
    run = run_of_peaks(tmp_path, *({"weights": peak * frac} for peak, frac in
                                   zip(true, (1, 1.0008, 1, 0.9992), strict=True)))  # fmt: skip
    line = next(growth_by_input_size(run).itertuples())
    assert line.shape == "line"
    assert 0 < line.residual_frac < 0.001
    assert line.slope_error_bytes > 0
    assert line.slope_low_bytes == pytest.approx(line.slope_bytes - 4.3027 * line.slope_error_bytes, rel=1e-4)
    assert line.fixed_high_bytes == pytest.approx(line.fixed_bytes + 4.3027 * line.fixed_error_bytes, rel=1e-4)


def test_a_jump_is_a_step_with_what_is_responsible(tmp_path: Path) -> None:
    run = run_of_peaks(
        tmp_path, {"weights": 5e7, "temporary": 1e7, "input": 1e6}, {"weights": 5e7, "temporary": 6e7, "input": 2e6},
        {"weights": 5e7, "temporary": 4e7, "input": 3e6}, {"weights": 5e7, "temporary": 4.1e7, "input": 4e6})
    growth = next(growth_by_input_size(run).itertuples())
    assert (growth.shape, growth.reason) == ("steps", "no line")
    assert pd.isna(growth.slope_bytes)
    assert pd.isna(growth.fixed_bytes)
    steps = memory_steps(run)
    columns = ["from_size", "input_size", "bytes", "category", "category_bytes", "phase", "layer", "operator"]
    operator = "aten::convolution_backward"
    assert steps[columns].to_numpy().tolist() == [
        [32, 48, 5.1e7, "temporary", 5e7, "backward", "layer1", operator],
        [48, 64, -1.9e7, "temporary", -2e7, "backward", "layer1", operator],  # the place of the peak that fell
        [64, 80, 2e6, "temporary", 1e6, "backward", "layer3", operator],
    ]
    assert steps["case"].tolist()[0] == "resnet18-48-b8-train-fp32-cpu"
    assert steps["from_case"].tolist()[0] == "resnet18-32-b8-train-fp32-cpu"
    assert steps["total_bytes"].tolist() == [1.12e8, 9.3e7, 9.5e7]
    assert steps["excess_bytes"].abs().idxmax() == 0


def test_constant_and_falling_series(tmp_path: Path) -> None:
    falling = run_of_peaks(tmp_path / "falling", {"weights": 9e7}, {"weights": 8e7}, {"weights": 7e7})
    assert growth_by_input_size(falling)["shape"].tolist() == ["steps"]
    assert (memory_steps(falling)["bytes"] < 0).all()
    nearly = run_of_peaks(tmp_path / "nearly", {"weights": 9e7}, {"weights": 8.98e7}, {"weights": 8.95e7})
    growth = next(growth_by_input_size(nearly).itertuples())
    assert (growth.shape, growth.reason) == ("constant", "constant")
    assert growth.spread_frac == pytest.approx(0.05 / 9)
    assert pd.isna(growth.slope_bytes)
    assert memory_steps(nearly).empty
    for first in (32, 512):  # noise, also over a small range of large sizes
        run = run_of_peaks(tmp_path / f"{first}", *({"weights": 9e7 * (1 + off)} for off in (0, 0.004, 0.001, 0.005)),
                           first=first)
        assert growth_by_input_size(run)["shape"].tolist() == ["constant"]


def test_a_line_below_zero_has_no_fixed_part(tmp_path: Path) -> None:
    run = run_of_peaks(tmp_path, *({"activations": 1e3 * (size**2 - 500)} for size in (32, 48, 64)))
    growth = next(growth_by_input_size(run).itertuples())
    assert growth.shape == "line"
    assert growth.slope_bytes == pytest.approx(1000)
    assert pd.isna(growth.fixed_bytes)
    assert growth.reason == "the line meets 0 at a positive size"


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=7))
@settings(max_examples=30)
def test_no_growth_is_negative(tmp_path_factory: pytest.TempPathFactory, peaks: list[int]) -> None:
    run = run_of_peaks(tmp_path_factory.mktemp("any"), *({"weights": float(peak)} for peak in peaks))
    growth = growth_by_input_size(run)
    assert not (growth[["slope_bytes", "fixed_bytes", "sample_slope_bytes"]] < 0).any(axis=None)
    (shape,) = growth["shape"]
    assert pd.isna(shape) == (len(peaks) == 1)
    assert len(memory_steps(run)) == (len(peaks) - 1 if shape == "steps" else 0)
    if shape == "steps":
        assert memory_steps(run)["bytes"].tolist() == [after - before for before, after in pairwise(peaks)]


@pytest.mark.parametrize(("sizes", "reason"), [
    ((32,), "one input size only"), ((32, 64), "two input sizes do not show a line")])
def test_few_sizes_have_no_line(sizes: tuple[int, ...], reason: str, tmp_path: Path) -> None:
    run = measured_run(tmp_path, *sizes)
    line = next(growth_by_input_size(run).itertuples())
    assert line.reason == reason
    assert pd.isna(line.slope_bytes)
    assert len(memory_steps(run)) == 2 * (len(sizes) - 1)  # measured and predicted


def test_training_over_inference_of_equal_cases(run: Run, tmp_path: Path) -> None:
    ratios = training_to_inference(run).set_index(["train_case", "method"])
    expected = true_bytes("image", "train", 256) / true_bytes("image", "infer", 256)
    assert ratios.loc[(TRAIN, "measured"), "ratio"] == pytest.approx(expected)
    assert ratios.loc[(TRAIN, "measured"), "infer_case"] == INFER
    assert len(ratios) == 2 * (12 + 4)
    assert ratios.loc[(RAN_OUT, "predicted"), "ratio"] > 3
    assert (RAN_OUT, "measured") not in ratios.index
    assert training_to_inference(measured_run(tmp_path, 32, 64)).empty


def test_the_timeline_has_the_peak_also_without_numbers(run: Run) -> None:
    rows = memory_timeline(run).query("case == @TRAIN")
    assert {method: group["moment"].nunique() for method, group in rows.groupby("method")} == {
        "measured": 23, "predicted": 23}
    measured = rows[rows["method"] == "measured"]
    assert measured["moment"].is_monotonic_increasing
    assert measured["category"].tolist()[:len(MEMORY_CATEGORIES)] == list(MEMORY_CATEGORIES)
    assert measured.groupby("moment")["bytes"].sum().max() == true_bytes("image", "train", 256)
    assert rows.loc[rows["method"] == "predicted", "time_s"].isna().all()
    moments = peak_moments(run).set_index(["case", "method"])
    train = moments.loc[TRAIN, "measured"]
    assert train[["phase", "layer", "operator"]].tolist() == [
        "backward", "layer1.0.conv1", "aten::convolution_backward"]
    assert train["bytes"] == true_bytes("image", "train", 256)
    assert moments.loc[(INFER, "predicted"), "phase"] == "forward"
    assert len(moments) == 48 + 16
    rows = run.memory
    old = rows[(rows["case"] == TRAIN) & (rows["method"] == "measured")].assign(moment=None, layer=None, operator=None)
    older = Run(run.path, run.manifest, _tables={"memory": old})
    pd.testing.assert_series_equal(
        memory_timeline(older)["moment"],
        memory_timeline(run).query("case == @TRAIN and method == 'measured'")["moment"].reset_index(drop=True),
    )
    assert peak_moments(older)["phase"].tolist() == ["backward"]


def test_what_layers_hold_at_the_peak(tmp_path: Path) -> None:
    # Layer b frees what it and a part of layer a allocated before c needs the most; later moments do not count.
    moments = [(None, 10), ("a", 15), ("b", 19), ("b", 13), ("c", 20), ("c", 12)]
    rows = [{"kind": "timeline", "method": "measured", "phase": "forward", "moment": number, "time_s": 0.1 * number,
             "layer": layer, "category": "activations", "bytes": held}
            for number, (layer, held) in enumerate(moments)]
    held = memory_by_layer(records.run_of(tmp_path, (records.case_entry("r", 32, "train"), {"memory": rows})))
    assert held["layer"].isna().tolist() == [True, False, False]
    assert held[["layer", "bytes"]].fillna("none").to_numpy().tolist() == [["none", 10], ["a", 3], ["c", 7]]


def test_needs_of_device_and_process(run: Run, tmp_path: Path) -> None:
    needs = memory_needs(run).set_index("case")
    assert needs.loc[TRAIN, "process_ratio"] == pytest.approx(1.25)
    assert pd.isna(needs.loc[TRAIN, "reserved_ratio"])
    assert needs["fits"].value_counts().to_dict() == {1: 46, 0: 2}
    assert needs.loc[TOO_LARGE, "margin_bytes"] < 0 < needs.loc[TRAIN, "margin_bytes"]
    assert set(needs["target"]) == {"tiny"}
    entry = made.memory_entry("image", "train", 64, measured=True)
    entry["passes"]["memory"] |= {"peak_bytes": 1e8, "reserved_peak_bytes": 1.2e8, "allocator_peak_bytes": 1.01e8}
    entry["passes"]["prediction"] |= {"reserved_peak_bytes": 1.1e8, "context_bytes": 5e8, "needed_bytes": 6.1e8}
    others: list[Any] = [records.case_entry("vgg16", size, "infer") | {"passes": passes} for size, passes in (
        (1, {"memory": {"status": "ok", "peak_bytes": 0.0, "reserved_peak_bytes": 1.0}}), (2, {}),
        (3, {"prediction": {"status": "ok", "peak_bytes": 5.0}}))]
    run = records.run_of(tmp_path, (entry | {"device": "cuda"}, {}), *((other, {}) for other in others))
    assert memory_needs(run)["allocated_bytes"].fillna(-1.0).tolist() == [1e8, 0, -1]
    assert pd.isna(memory_needs(run)["reserved_ratio"][1])
    needs = next(memory_needs(run).itertuples())
    assert needs.reserved_ratio == pytest.approx(1.2)
    assert (needs.predicted_reserved_bytes, needs.context_bytes, needs.needed_bytes) == (1.1e8, 5e8, 6.1e8)


def test_what_fits_and_what_ran_out(run: Run) -> None:
    fits = memory_fits(run)
    assert fits[["workload", "mode", "searched", "value", "input_size"]].to_numpy().tolist() == [
        ["resnet18", "train", "batch_size", 9, 32], ["resnet18", "infer", "input_size", 700, 32],
        ["rnn_lm", "train", "batch_size", 9, 10], ["rnn_lm", "infer", "input_size", 700, 10],
    ]  # fmt: skip
    assert fits.loc[0, ["target", "device", "verified"]].tolist() == ["tiny", "cpu", "ok"]
    assert fits["ended_by"].tolist() == ["memory", "its 256 samples"] * 2
    told = next(out_of_memory(run).itertuples())
    assert (told.case, told.phase) == (RAN_OUT, "forward")
    assert (told.requested_bytes, told.free_bytes, told.held_bytes) == (1.2e8, 1.02e8, 5.78e8)
    assert (told.fits_batch_size, told.fits_input_size) == (6, 320)
    held = out_of_memory_composition(run)
    assert held["category"].tolist() == list(MEMORY_CATEGORIES)
    assert held["bytes"].sum() == told.held_bytes


def test_kinds_of_runs_and_their_peaks(run: Run, record: Path) -> None:
    summary = case_summary(run)
    assert set(summary["kind"]) == {"memory"}
    assert summary.set_index("case").loc[TRAIN, "peak_bytes"] == true_bytes("image", "train", 256)
    assert set(case_summary(load_run(record))["kind"]) == {"profile"}
    peaks = memory_peaks(load_run(record))
    assert set(peaks["predicted_reason"]) == {"not predicted"}
    assert peaks["measured_bytes"].notna().all()
    assert not is_memory_run(load_run(record))
    rows = run.memory
    twice = Run(run.path, run.manifest, _tables={"memory": rows.assign(bytes=2 * rows["bytes"])})
    compared = metric_ratios([Group("one", (run,)), Group("twice", (twice,))]).query("metric == 'peak_memory'")
    assert compared.set_index("case").loc[TRAIN, ["value", "ratio"]].tolist() == [
        2 * true_bytes("image", "train", 256), 2]
    assert metric_ratios([Group("one", (run,)), Group("profile", (load_run(record),))]).empty


def test_cases_of_ranks_are_a_series_of_their_own(tmp_path: Path) -> None:
    ranks = {"alone": {}, "ranks": {"parallel": "fsdp2", "world_size": 8},
             "more": {"parallel": "fsdp2", "world_size": 16}, "a rank of a script": {"world_size": 8}}
    run = records.run_of(tmp_path, *((records.case_entry("r", 32, "train") | {"case": name} | facts, {})
                                     for name, facts in ranks.items()))
    series = case_series(run).set_index("case")["ranks"]
    assert series.to_dict() == {"alone": "", "ranks": "fsdp2 over 8 ranks", "more": "fsdp2 over 16 ranks",
                                "a rank of a script": ""}


def test_backends_of_attention_and_caches_are_series_of_their_own(tmp_path: Path) -> None:
    """Equal sizes with another cache or backend are no points of one line."""
    settings: list[dict[str, Any]] = [{}, {"attention": "math"}, {"output_size": 8, "cache": "int8"},
                                      {"output_size": 8, "cache": "static"}, {"output_size": 9, "cache": "static"},
                                      {"lora_rank": 4}]
    run = records.run_of(tmp_path, *(
        (made.memory_entry("sequence", "infer", size, measured=False) | facts | {"case": f"{number}-{size}"},
         {"memory": made.memory_rows("sequence", "infer", size, measured=False)})
        for number, facts in enumerate(settings) for size in (32, 64, 128)))
    grown = growth_by_input_size(run)
    assert grown["num_sizes"].tolist() == [3] * 6
    assert grown["settings"].tolist() == ["", "math attention", "8 outputs, int8 cache", "8 outputs", "9 outputs",
                                          "LoRA of rank 4"]


def _grown(tmp_path: Path, peaks: dict[int, float]) -> pd.DataFrame:
    """Growth of a series of trainings on sequences with these peaks (bytes) by length."""
    row = {"kind": "peak", "method": "measured", "phase": "backward", "time_s": None, "category": "activations"}
    return growth_by_input_size(records.run_of(tmp_path, *(
        (records.case_entry("lm", size, "train") | {"input_kind": "sequence"}, {"memory": [row | {"bytes": peak}]})
        for size, peak in peaks.items())))


def test_squares_and_rounded_lines(tmp_path: Path) -> None:
    sizes = [128, 160, 192, 224, 256]
    (row,) = _grown(tmp_path, {size: 3e6 + 2000 * size + 12 * size**2 for size in sizes}).to_dict("records")
    assert row["shape"] == "square"
    assert (row["square_bytes"], row["linear_bytes"], row["fixed_bytes"]) == pytest.approx((12, 2000, 3e6), rel=1e-6)
    assert pd.isna(row["slope_bytes"])
    sizes = range(64, 1024, 96)
    peaks = {size: 4096.0 * round((3e6 + 24_000 * size) / 4096) for size in sizes}
    (row,) = _grown(tmp_path, peaks).to_dict("records")
    assert (row["shape"], row["slope_bytes"]) == ("line", pytest.approx(24_000, rel=0.01))


@pytest.mark.parametrize(("options", "num_cases", "limit"), [
    ({"device_memory_bytes": 100}, 1, None), ({"device_like": "tiny"}, 1, None), ({}, 0, None),
    *[(named | {"fit": "size"}, 0, None) for named in ({"device_memory_bytes": 100}, {"device_like": "tiny"}, {})],
    ({"device_memory_bytes": 100, "gpus_of_that_memory": ["a"]}, 1, (100.0, ["a"])),
    ({"gpus_of_that_memory": ["a"]}, 0, None), ({"device_memory_bytes": 7.5, "gpus_of_that_memory": []}, 1, (7.5, []))])
def test_cases_that_fit_the_named_memory(options: dict[str, Any], num_cases: int, limit: Any) -> None:
    entries = [records.case_entry("r", size, "infer") | {"passes": {"prediction": {
        "status": "ok", "fits": fits, "device": "tiny", "device_memory_bytes": 100, "needed_bytes": 70}}}
        for size, fits in ((1, True), (2, False), (3, None))]
    run = Run(Path("none"), {"cases": entries, "options": options})
    room = memory_room(run)
    assert room[["case", "target", "limit_bytes", "needed_bytes", "margin_bytes"]].to_numpy().tolist() == [
        [entries[0]["case"], "tiny", 100, 70, 30]][:num_cases]
    assert room[["allocated_bytes", "context_bytes"]].isna().all(axis=None)  # of a CPU
    assert limited_cpu(run) == limit
