"""What `ncu` writes: launches of kernels in any state of the file, and the counters that they give."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charact.measure.counters._support.rerun_case import RANGE_PREFIX
from charact.measure.counters.ncu import (
    Launch,
    Wanted,
    counters_of,
    launches_by,
    listed_metrics,
    read_launches,
    wanted_metrics,
)

FUSED = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"


INSTRUCTIONS = "sm__inst_executed_pipe_tensor"
FLOP = {f"smsp__sass_thread_inst_executed_op_{width}{operation}_pred_on"
        for width in "hfd" for operation in ("add", "mul", "fma")}
PACKED = {f"smsp__sass_thread_inst_executed_op_{name}_pred_on" for name in ("fadd2", "fmul2", "ffma2")}


def tensor(*names: str) -> set[str]:
    return {f"sm__ops_path_tensor_{name}" for name in names}


def asked_of_tensor_cores(listed: set[str], capability: tuple[int, int] | None = (9, 0)) -> list[str]:
    wanted = wanted_metrics(listed | {INSTRUCTIONS}, capability)
    assert wanted.tensor_gap is None
    return [name.removeprefix("sm__ops_path_tensor_") for name in wanted.metrics]


VOLTA = tensor("src_fp16_dst_fp16", "src_fp16_dst_fp32")
TURING = tensor("src_fp16_bf16_tf32_dst_fp32", "src_fp16_dst_fp16", "src_int1", "src_int4", "src_int8")
AMPERE = tensor("src_bf16_dst_fp32", "src_bf16_dst_fp32_sparsity_on", "src_bf16_dst_fp32_sparsity_off", "src_fp64",
                "src_int8_sparsity_on")
HOPPER = tensor("src_fp16", "src_fp8", "src_fp8_sparsity_on", "op_hmma_src_fp16", "op_hmma_src_fp16_dst_fp32",
                "op_hgmma_src_fp16_sparsity_off", "op_bgmma_src_int1", "src_int8")
BLACKWELL = tensor("src_bf16_dst_fp32", "src_bf16_dst_fp32_realtime", "src_fp4_dst_fp32", "src_fp4_fp6_fp8_dst_fp32",
                   "op_hmma_src_bf16_dst_fp32", "op_utchmma_src_bf16_dst_fp32_sparsity_on",
                   "op_utcqmma_src_fp4_fp6_fp8_dst_fp32", "op_utcomma_src_fp4_dst_fp32", "op_utcimma_src_int8")
RUBIN = tensor("src_bf16_dst_fp32", "src_fp16_dst_fp32", "src_fp16_bf16_dst_fp32_realtime")


@pytest.mark.parametrize(("listed", "asked"), [
    (VOLTA, ["src_fp16_dst_fp16.sum", "src_fp16_dst_fp32.sum"]),
    (TURING, ["src_fp16_bf16_tf32_dst_fp32.sum", "src_fp16_dst_fp16.sum"]),
    (AMPERE, ["src_bf16_dst_fp32.sum", "src_fp64.sum"]),
    (HOPPER, ["src_fp16.sum", "src_fp8.sum"]),
    (BLACKWELL, ["src_bf16_dst_fp32.sum", "src_fp4_dst_fp32.sum", "src_fp4_fp6_fp8_dst_fp32.sum"]),
    (RUBIN, ["src_bf16_dst_fp32.sum", "src_fp16_dst_fp32.sum"]),
    (tensor("op_hmma_src_bf16_dst_fp32", "op_utchmma_src_bf16_dst_fp32", "op_hmma_src_bf16_dst_fp32_sparsity_off"),
     ["op_hmma_src_bf16_dst_fp32.sum", "op_utchmma_src_bf16_dst_fp32.sum"]),
    (tensor("src_mxfp8_dst_fp32", "op_hmma_src_bf16_dst_fp32"),
     ["op_hmma_src_bf16_dst_fp32.sum", "src_mxfp8_dst_fp32.sum"]),
])
def test_tensor_operations_are_counted_once_under_whatever_name(listed: set[str], asked: list[str]) -> None:
    assert asked_of_tensor_cores(listed) == asked


@pytest.mark.parametrize(("listed", "capability", "named"), [
    (tensor("src_bf16_dst_fp32", "src_posit8_dst_fp32") | {INSTRUCTIONS}, (11, 0), "sm__ops_path_tensor_src_posit8_"),
    ({INSTRUCTIONS}, (7, 5), INSTRUCTIONS),
    ({"sm__warps_active"}, (11, 0), "none has tensor in its name"),
])
def test_a_chip_with_unknown_names_of_tensor_operations_has_a_gap(
        listed: set[str], capability: tuple[int, int], named: str) -> None:
    wanted = wanted_metrics(listed, capability)
    assert wanted.tensor_gap is not None
    assert named in wanted.tensor_gap
    assert (f"{INSTRUCTIONS}.sum" in wanted.metrics) == (INSTRUCTIONS in listed)


@pytest.mark.parametrize("capability", [None, (6, 1)])
def test_without_tensor_cores_there_is_no_gap(capability: tuple[int, int] | None) -> None:
    assert wanted_metrics({"sm__warps_active"}, capability).tensor_gap is None


@pytest.mark.parametrize(("values", "flop"), [
    ({f"{INSTRUCTIONS}.sum": 0.0}, 12), ({f"{INSTRUCTIONS}.sum": 1.0}, None), ({}, None)])
def test_flop_of_unknown_tensor_operations_are_missing_and_not_too_low(
        values: dict[str, float], flop: float | None) -> None:
    """As on a GTX 16: its other kernels have their FLOP."""
    wanted = wanted_metrics(FLOP | {INSTRUCTIONS}, (7, 5))
    of_cuda_cores = {name: 0.0 for name in wanted.metrics if "sass" in name} | {FUSED: 6.0}
    assert counters_of([launch(1.0, **of_cuda_cores, **values)], wanted).get("executed_flop") == flop


def test_flop_are_missing_where_a_kernel_lacks_those_of_tensor_cores() -> None:
    wanted = wanted_metrics(FLOP | BLACKWELL, (10, 0))
    whole = dict.fromkeys(wanted.metrics, 1.0)
    assert counters_of([launch(1.0, **whole)], wanted)["executed_flop"] == (2 + 2 + 4) + 2 * (1 + 1 + 2) + 3
    del whole["sm__ops_path_tensor_src_bf16_dst_fp32.sum"]
    assert "executed_flop" not in counters_of([launch(1.0, **whole)], wanted)


def test_metrics_are_listed_as_csv_or_in_columns() -> None:
    columns = "Device NVIDIA H100 (GH100)\n-----\nMetric Name    Metric Type\n----\ndram__bytes     Counter    byte\n"
    assert listed_metrics(columns) == {"dram__bytes"}
    assert listed_metrics('"Metric Name","Metric Type"\n"sm__warps_active","Counter"\n') == {"sm__warps_active"}


def launch(duration_s: float, phase: str = "forward", **values: float) -> Launch:
    return Launch(phase, "kernel", {"gpu__time_duration.sum": duration_s, **values})


def test_shares_are_weighted_by_duration_and_amounts_summed() -> None:
    wanted = wanted_metrics(FLOP, None)
    flop = dict.fromkeys(wanted.metrics, 0.0)
    launches = [launch(3.0, **flop | {OCCUPANCY: 0.2, FUSED: 5.0}), launch(1.0, **flop | {OCCUPANCY: 1.0, FUSED: 7.0})]
    found = counters_of(launches, wanted)
    assert found["warp_occupancy_frac"] == pytest.approx(0.4)
    assert found["executed_flop"] == 24
    assert found["flop_per_s"] == pytest.approx(6)
    assert found["kernel_s"] == 4


def test_blackwell_has_instructions_of_two_numbers_of_four_bytes() -> None:
    wanted = wanted_metrics(FLOP | PACKED, None)
    assert {name.removesuffix(".sum") for name in wanted.metrics} == FLOP | PACKED
    found = counters_of([launch(1.0, **dict.fromkeys(wanted.metrics, 1.0))], wanted)
    assert found["executed_flop"] == (2 + 2 + 4) + 2 * (1 + 1 + 2) + (2 + 2 + 4)  # two numbers of 2 bytes, too


def test_a_sum_to_which_a_kernel_gives_nothing_is_left_out() -> None:
    found = counters_of([launch(1.0, **{"dram__bytes.sum": 5.0}), launch(1.0)], Wanted([]))
    assert "dram_bytes" not in found
    assert "executed_flop" not in found
    assert found["kernel_s"] == 2


def row(*fields: str) -> str:
    return ",".join(f'"{field}"' for field in fields)


HEADER = row("ID", "Kernel Name", "thread Domain:Push/Pop_Range:PL_Type", "gpu__time_duration.sum", "dram__bytes.sum",
             OCCUPANCY)
RECORDED = "\n".join([
    "==PROF== Connected to process 4711 (/usr/bin/python3.12)",
    '==PROF== Profiling "gemm" - 0: 0%....50%....100% - 7 passes',
    "a library says something that is no table", HEADER,
    row("", "", "", "ns", "byte", "%"),
    row("0", "void gemm<float, 4>(T1 *, ""T2)", f"4711 <default domain>:{RANGE_PREFIX}forward:none:none",
        "1,234,567.00", "2,097,152", "43.75"),
    '==WARNING== Launching the workload is taking more time than expected.',
    row("1", "copy", f"4711 <default domain>:{RANGE_PREFIX}loss:none:none", "1,000", "n/a", "nan"),
    row("2", "before", "", "10", "1", "1"),
    "==PROF== Disconnected from process 4711", ""])


def test_the_documented_form_is_read() -> None:
    launches, broken = read_launches(RECORDED, RANGE_PREFIX)
    assert broken == 0
    assert [one.phase for one in launches] == ["forward", "loss", None]
    assert launches[0].kernel == "void gemm<float, 4>(T1 *, T2)"
    assert launches[0].values == pytest.approx(
        {"gpu__time_duration.sum": 1.234567e-3, "dram__bytes.sum": 2**21, OCCUPANCY: 0.4375})
    assert set(launches[1].values) == {"gpu__time_duration.sum"}
    assert set(launches_by(launches)) == {
        (None, None), ("forward", None), ("loss", None), ("forward", "void gemm<float, 4>(T1 *, T2)"),
        ("loss", "copy"), (None, "before")}


def test_units_that_are_scaled_are_brought_to_base_units() -> None:
    text = "\n".join([HEADER, row("", "", "", "usecond", "Kbyte", "%"), row("0", "k", "", "2", "3", "50")])
    [one], _ = read_launches(text, RANGE_PREFIX)
    assert one.values == pytest.approx({"gpu__time_duration.sum": 2e-6, "dram__bytes.sum": 3000, OCCUPANCY: 0.5})


@pytest.mark.parametrize("text", ["", "==ERROR== no", '"', HEADER, HEADER[:20], "\0\0"])
def test_what_holds_no_launch_gives_none(text: str) -> None:
    assert read_launches(text, RANGE_PREFIX) == ([], 0)


@given(st.integers(0, len(RECORDED)))
def test_a_file_that_is_cut_off_loses_no_more_than_its_last_row(end: int) -> None:
    whole, _ = read_launches(RECORDED, RANGE_PREFIX)
    launches, broken = read_launches(RECORDED[:end], RANGE_PREFIX)
    assert launches[:-1] == whole[:max(0, len(launches) - 1)]
    assert broken <= 1


@given(st.text(alphabet=st.sampled_from('",=0123456789.nID\n\0abK_%')), st.integers(0, len(RECORDED)))
def test_rubbish_in_a_file_is_no_error(rubbish: str, place: int) -> None:
    launches, _ = read_launches(RECORDED[:place] + rubbish + RECORDED[place:], RANGE_PREFIX)
    for one in launches:
        assert all(isinstance(number, float) and number == number for number in one.values.values())


@given(st.lists(st.tuples(st.text(st.characters(exclude_categories=["C", "Z"])), st.floats(0, 1e15)), max_size=5))
def test_kernels_of_any_name_are_read_back(kernels: list[tuple[str, float]]) -> None:
    fields = [["ID", "Kernel Name", "dram__bytes.sum"], ["", "", "byte"],
              *([str(number), name, f"{num_bytes:,.3f}"] for number, (name, num_bytes) in enumerate(kernels))]
    text = "\n".join(",".join('"' + field.replace('"', '""') + '"' for field in one) for one in fields)
    launches, broken = read_launches(text, RANGE_PREFIX)
    assert broken == 0
    assert [one.kernel for one in launches] == [name for name, _ in kernels]
    assert [one.values["dram__bytes.sum"] for one in launches] == pytest.approx(
        [num_bytes for _, num_bytes in kernels], abs=1e-3)
