"""Times, shares and rates against numbers worked out by hand from tests/support/records.py."""

from pathlib import Path

import pandas as pd
import pytest
from support import records

from charact.analysis.efficiency.layers import top_layers
from charact.analysis.profile.breakdown import (
    operator_coverage,
    operator_times,
    operator_types,
    phase_breakdown,
    top_operators,
)
from charact.analysis.profile.case_summary import case_summary, iteration_times
from charact.analysis.profile.layer_tree import layer_work
from charact.core.operator_types import OUTSIDE_OPERATORS
from charact.record.reader import load_run
from charact.record.schema import PHASES

TRAIN = "resnet50-32-b8-train-fp32-cpu"
INFER = "resnet50-224-b8-infer-fp32-cpu"
# Iteration i takes .1 s × (1 + i/1000): the median of ten is at i = 4.5.
TRAIN_MEDIAN_S = 0.1 * 1.0045


def row(frame: pd.DataFrame, **where: str) -> pd.Series:
    """The one row in which all columns named have these values."""
    for column, value in where.items():
        frame = frame[frame[column] == value]
    assert len(frame) == 1
    return frame.iloc[0]


def test_the_devices_clock_is_preferred(tmp_path: Path) -> None:
    rows = [{"iteration": 0, "phase": "forward", "host_s": 0.5, "device_s": 0.2},
            {"iteration": 0, "phase": "other", "host_s": 0.1, "device_s": None}]
    run = records.run_of(tmp_path, (records.case_entry("r", 32, "infer"), {"iterations": rows}))
    assert iteration_times(run)["wall_s"].tolist() == pytest.approx([0.3])
    phases = phase_breakdown(run).set_index("phase")
    assert phases.loc["forward", ["host_s", "device_s", "time_s"]].tolist() == pytest.approx([0.5, 0.2, 0.2])
    assert pd.isna(phases.loc["other", "device_s"])


def test_case_summary(record: Path) -> None:
    walls = iteration_times(load_run(record)).query("case == @TRAIN")["wall_s"]
    assert walls.tolist() == pytest.approx([0.1 * (1 + 0.001 * i) for i in range(10)])
    summary = case_summary(load_run(record))
    assert summary["case"].tolist() == [
        f"resnet50-{size}-b8-{mode}-fp32-cpu" for size in (32, 224) for mode in ("train", "infer")
    ]
    case = row(summary, case=TRAIN)
    assert case["num_iterations"] == 10
    assert case["median_s"] == pytest.approx(TRAIN_MEDIAN_S)
    # Ten values: P(Binomial(10, ½) < 2) = 11/1024 is the last tail below 2.5 %, so the 2nd and the 9th value, which
    # contain the quantiles of the bootstrap.
    assert (case["low_s"], case["high_s"]) == pytest.approx((0.1001, 0.1008))
    assert case[["p5_s", "p95_s"]].isna().all()  # of ten values they would be the fastest and the slowest
    assert case["samples_per_s"] == pytest.approx(8 / TRAIN_MEDIAN_S)
    assert case["flop"] == pytest.approx(6.5e10 + 1.3e11)
    assert case["flop_per_s"] == pytest.approx(1.95e11 / TRAIN_MEDIAN_S)
    assert case["peak_bytes"] == pytest.approx(3 * 1.02e8 + 1e3 * 32**2 + 1e6 + 4 * 8 * 3 * 32**2)


@pytest.mark.parametrize(("num_iterations", "ends"), [
    (5, None), (6, None), (19, None), (20, (1.095, 2.805)), (21, (1.1, 2.9))])
def test_intervals_need_six_and_quantiles_twenty_iterations(tmp_path: Path, num_iterations: int,
                                                            ends: tuple[float, float] | None) -> None:
    rows = [{"iteration": number, "phase": "forward", "host_s": 1 + 0.1 * number, "device_s": None}
            for number in range(num_iterations)]
    case = case_summary(records.run_of(tmp_path, (records.case_entry("r", 32, "infer"), {"iterations": rows}))).iloc[0]
    quantiles = case[["p5_s", "p95_s"]]
    assert (None if quantiles.isna().all() else tuple(quantiles)) == (None if ends is None else pytest.approx(ends))
    assert pd.notna(case["low_s"]) == (num_iterations >= 6)
    assert case["num_iterations"] == num_iterations


def test_tokens_per_second_leave_padding_out(tmp_path: Path) -> None:
    entry, tables = records.case_entry("gpt", 32, "train"), records.case_tables("train", 32)
    entry["passes"]["timing"] |= {"num_tokens": 7_500, "num_padding": 2_500}  # of 10 iterations
    built_in = case_summary(records.run_of(tmp_path / "a", (entry, tables))).iloc[0]
    assert built_in["tokens_per_s"] == pytest.approx(750 / TRAIN_MEDIAN_S)
    assert built_in["padding_frac"] == 0.25
    watched = case_summary(records.run_of(tmp_path / "b", (entry, tables), options={"script": "train.py"})).iloc[0]
    assert watched["tokens_per_s"] == pytest.approx(7_500 / sum(row["host_s"] for row in tables["iterations"]))
    del entry["passes"]["timing"]["num_padding"]
    unpadded = case_summary(records.run_of(tmp_path / "c", (entry, tables))).iloc[0]
    assert (unpadded["tokens_per_s"], pd.isna(unpadded["padding_frac"])) == (built_in["tokens_per_s"], True)


def test_a_failed_case_has_a_row_with_its_reason_and_nulls(tmp_path: Path) -> None:
    run = load_run(records.write_record(tmp_path, oom=True))
    case = row(case_summary(run), status="oom")
    assert case["reason"] == "out of memory: asked for 64.0 GB"
    assert case["requested_bytes"] == 64e9
    assert case[["num_iterations", "median_s", "low_s", "samples_per_s", "flop_per_s", "peak_bytes"]].isna().all()


def test_phases_and_other_sum_to_the_wall(record: Path) -> None:
    run = load_run(record)
    phases = phase_breakdown(run)
    medians = case_summary(run).set_index("case")["median_s"]
    for case, rows in phases.groupby("case"):
        assert rows["share_frac"].sum() == pytest.approx(1, abs=1e-12)
        assert rows["time_s"].sum() == pytest.approx(medians[case], abs=1e-12)
    assert phases.loc[phases["case"] == TRAIN, "phase"].tolist() == [
        name for name in PHASES if name not in ("communication", "sample")]
    forward = row(phases, case=TRAIN, phase="forward")
    assert forward["share_frac"] == pytest.approx(0.3)
    assert forward["median_s"] == pytest.approx(0.03 * 1.0045)
    assert forward["mean_s"] == pytest.approx(0.03 * 1.0045)


def test_operator_types_and_what_no_operator_covers(record: Path) -> None:
    types = operator_types(load_run(record)).query("case == @TRAIN")
    convolution = row(types, phase="forward", operator_type="convolution")
    assert convolution["time_s"] == pytest.approx(0.7 * 0.03)
    # The operator pass ran 4 % slower: its forward took .0312 s, of which operators cover .91 × .03 s.
    assert convolution["share_frac"] == pytest.approx(0.021 / 0.0312)
    outside = row(types, phase="forward", operator_type=OUTSIDE_OPERATORS)
    assert outside["time_s"] == pytest.approx(0.0312 - 0.0273)
    assert types.groupby("phase")["share_frac"].sum().tolist() == pytest.approx([1] * 5)
    assert types.query("phase == 'forward'")["operator_type"].tolist() == [
        "convolution", "normalization", OUTSIDE_OPERATORS, "other",
    ]  # fmt: skip


def test_operators_on_a_device_count_kernel_time_only(tmp_path: Path) -> None:
    tables = records.case_tables("infer", 32)
    for number, operator in enumerate(tables["operators"]):
        operator["device_s"] = 0.002 if number == 1 else None
    types = operator_types(records.run_of(tmp_path, (records.case_entry("r", 32, "infer"), tables)))
    assert OUTSIDE_OPERATORS not in set(types["operator_type"])
    assert types["time_s"].sum() == pytest.approx(0.002)
    assert row(types, phase="forward", operator_type="convolution")["share_frac"] == pytest.approx(1)


def test_times_and_flop_of_all_layers_are_those_of_all_operators(record: Path) -> None:
    run = load_run(record)
    work, operators = (table[table["case"] == TRAIN] for table in (layer_work(run), operator_times(run)))
    for column in ("time_s", "flop"):
        assert work[column].sum() == pytest.approx(operators[column].sum())
    assert set(work["phase"]) == set(operators["phase"])


def test_top_operators(record: Path) -> None:
    operators = top_operators(load_run(record)).query("case == @TRAIN")
    assert operators["time_s"].is_monotonic_decreasing
    top = operators.iloc[0]
    assert (top["operator"], top["phase"]) == ("aten::mkldnn_convolution_backward", "backward")
    assert top["flop_per_s"] == pytest.approx(1.3e11 / 0.045)
    total_s = 0.5 * 0.01 + 0.91 * 0.03 + 0.8 * 0.001 + 0.9 * 0.05 + 0.9 * 0.008
    assert top["share_frac"] == pytest.approx(0.045 / total_s)
    assert pd.isna(row(operators, operator="aten::native_batch_norm")["flop"])
    case = row(operator_coverage(load_run(record)), case=INFER)
    total_s = 0.5 * 0.01 + 0.91 * 0.025
    assert case["time_s"] == pytest.approx(total_s)
    assert case["other_s"] == pytest.approx(0.01 * 0.025)
    assert case["coverage_frac"] == pytest.approx(1 - 0.00025 / total_s)
    layers = top_layers(load_run(record)).query("case == @TRAIN")
    top = layers.iloc[0]
    assert (top["layer"], top["layer_type"], top["num_parameters"]) == ("layer1.0.conv1", "Conv2d", 9408)
    assert (top["forward_s"], top["backward_s"], top["time_s"]) == pytest.approx((0.021, 0.045, 0.066))
    assert top["flop"] == pytest.approx(1.95e11)
    assert top["flop_per_s"] == pytest.approx(1.95e11 / 0.066)
    norm = row(layers, layer="layer1.0.bn1")
    assert norm["forward_s"] == pytest.approx(0.006)
    assert norm[["backward_s", "flop", "flop_per_s"]].isna().all()
