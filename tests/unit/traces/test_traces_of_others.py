"""Traces as other programs and profilers write them: what is in them, and what is not, is recorded right."""

import tempfile
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.trace_reader import ReadTrace, covered_us, num_gaps
from support.traces import TraceMaker

from charact.record.manifest import CaseEntry
from charact.traces import collectives
from charact.traces.cases import trace_case
from charact.traces.collective_names import is_collective, kernel_operation
from charact.traces.decoding import EventDecoder
from charact.traces.reader import read_trace

Case = tuple[CaseEntry, dict[str, pd.DataFrame]]
GPU = {"id": 0, "name": "NVIDIA Test GPU", "totalGlobalMem": 80_000_000_000}


def case_of(made: TraceMaker, tmp_path: Path) -> Case:
    entry, tables = trace_case(read_trace(made.write(tmp_path / "made.json")), "made")
    return entry, {name: pd.DataFrame(rows) for name, rows in tables.items()}


def counters(case: Case) -> "pd.Series[float]":
    return case[1]["counters"].set_index("counter")["value"]


class TestTimes:
    """Times on the clock of the day, in microseconds: floats are 256 ns apart."""

    DAY = 1_694_128_201_544_951

    def adjacent(self, path: Path, apart_ns: int, number: int = 200) -> Path:
        """Write kernels of 7,300 ns, each starting `apart_ns` after the one before has ended."""
        made = TraceMaker()
        made.mark("ProfilerStep#1", 0, 8000)
        made.operator("aten::mm", 10_000, 7000)
        for place in range(number):
            made.kernel("gemm", 20_000 + place, 50_000 + place * (7300 + apart_ns), 7.3)
        for event in made.events:  # from ns to a text without rounding
            event["ts"] = f"@{self.DAY + event['ts'] // 1000}.{event['ts'] % 1000:03}@"
        path.write_text(made.text().replace('"@', "").replace('@"', ""))
        return path

    @pytest.mark.parametrize("apart_ns", [0, 1, 100])
    def test_all_digits_of_the_file_count(self, tmp_path: Path, apart_ns: int) -> None:
        _, tables = trace_case(read_trace(self.adjacent(tmp_path / "made.json", apart_ns)), "made")
        used = pd.DataFrame(tables["counters"]).set_index("counter")["value"]
        read = ReadTrace(tmp_path / "made.json")
        assert used["num_gaps"] == num_gaps(read.kernels()) == (199 if apart_ns else 0)
        assert used["busy_s"] == pytest.approx(covered_us(read.device()) / 1e6, rel=1e-12)
        assert used["gap_s"] == pytest.approx(199 * apart_ns / 1e9, rel=1e-9)

    def test_whole_microseconds_are_exact(self, tmp_path: Path) -> None:
        made = TraceMaker()
        made.mark("ProfilerStep#1", self.DAY, 8000)
        made.operator("aten::mm", self.DAY, 7000)
        for place in range(1000):
            made.kernel("gemm", self.DAY + place, self.DAY + 50 + 7 * place, 7)
        used = counters(case_of(made, tmp_path))
        assert used[["num_gaps", "gap_s", "busy_s", "span_s"]].tolist() == [0, 0, 7e-3, 7e-3]

    def test_times_that_a_float_has_rounded_make_no_gaps(self, tmp_path: Path) -> None:
        made = TraceMaker()
        made.mark("ProfilerStep#1", self.DAY, 8000)
        made.operator("aten::mm", self.DAY, 7000)
        for place in range(500):
            made.kernel("gemm", self.DAY + place, self.DAY + 50 + 7.3 * place, 7.3)  # rounded to quarters
        made.kernel("late", self.DAY + 600, self.DAY + 50 + 7.3 * 500 + 20, 5)
        used = counters(case_of(made, tmp_path))
        assert used["num_gaps"] == 1
        assert used["gap_s"] == pytest.approx(20e-6, abs=0.6e-6)

    def test_fractions_after_whole_times_are_exact(self) -> None:
        decode = EventDecoder()
        assert decode(b'[{"ts": 1694128201544951, "dur": 1}]')[0].ts == 1694128201544951
        assert decode(b'[{"ts": 1694128201544951.123, "dur": 1}]')[0].ts == Decimal("1694128201544951.123")

    def test_a_time_that_is_no_number_is_missing(self) -> None:
        decode = EventDecoder()
        assert decode(b'[{"ts": 1694128201544951.125, "dur": 1}]')[0].ts == Decimal("1694128201544951.125")
        assert [event.ts for event in decode(b'[{"ts": "NaN"}, {"ts": 7}, {}]')] == [None, 7, None]
        assert decode.resolution_ns == 0


class TestBusy:
    """The device is busy as a share of the marked iterations."""

    def test_a_short_burst_is_little_of_its_step(self, tmp_path: Path) -> None:
        made = TraceMaker()
        made.mark("ProfilerStep#5", 1000, 100_000)
        made.kernel("gemm", 100_550, 100_600, 90, by=made.operator("aten::mm", 100_500, 200))
        used = counters(case_of(made, tmp_path))
        assert used["utilization_frac"] == pytest.approx(90 / 100_000)
        assert used[["span_s", "busy_s"]].tolist() == pytest.approx([90e-6, 90e-6])

    def test_work_before_the_steps_does_not_count_and_work_after_them_does(self, tmp_path: Path) -> None:
        made = TraceMaker()
        made.event("kernel", "warm-up", 900, 300, 7, device=0, stream=7, correlation=99)
        for number in range(2):
            made.mark(f"ProfilerStep#{number}", 1000 + 1000 * number, 1000)
            operator = made.operator("aten::mm", 1100 + 1000 * number, 50)
            made.kernel("gemm", 1110 + 1000 * number, 1600 + 1000 * number, 800, by=operator)
        used = counters(case_of(made, tmp_path))
        # From 1,200, when the earlier work ends, to 3,400, when the work of the steps ends.
        read = ReadTrace(tmp_path / "made.json")
        assert used["utilization_frac"] == pytest.approx(1600 / 2200)
        assert used["utilization_frac"] == pytest.approx(covered_us(read.device(), 1200, 3400) / 2200)

    def test_without_steps_it_is_a_share_of_the_devices_time(self, tmp_path: Path) -> None:
        made = TraceMaker()
        made.operator("aten::mm", 0, 5000)
        made.kernel("gemm", 10, 100, 100)
        made.kernel("gemm", 20, 300, 100)
        assert counters(case_of(made, tmp_path))["utilization_frac"] == pytest.approx(2 / 3)


class TestDevice:
    """Which device ran the program, and what the trace lacks of it."""

    @pytest.mark.parametrize(("listed", "used", "name"), [
        ([{"id": 0, "name": "A"}], 5, "A"), ([{"id": 0, "name": "A"}, {"id": 5, "name": "B"}], 5, "B"),
        ([{"id": 0, "name": "A"}, {"id": 1, "name": "A"}], 5, "A"),
        ([{"id": 0, "name": "A"}, {"id": 1, "name": "B"}], 5, None),
        ([{"id": 0, "gpuName": "A"}], 0, "A"), ([{"index": 1, "deviceName": "A"}, {"index": 2, "name": "B"}], 1, "A"),
        ([{"id": 0, "name": ""}], 0, None), ([{"id": 0, "name": " "}, {"id": 1, "name": "A"}], 0, "A"),
        ([{"name": "A"}], 0, "A"), ([], 0, None), ({"0": {"name": "A"}}, 0, "A"), ("none", 0, None),
    ])
    def test_its_name_is_that_of_the_index_or_of_all(self, tmp_path: Path, listed: Any, used: int,
                                                     name: str | None) -> None:
        made = TraceMaker(deviceProperties=listed)
        made.operator("aten::mm", 0, 100)
        made.kernel("gemm", 10, 50, 300)
        made.events[-1]["args"]["device"] = used
        entry, _ = case_of(made, tmp_path)
        assert (entry.device, entry.device_name) == ("cuda", name)

    @pytest.mark.parametrize(("category", "call"), [
        ("cuda_runtime", "cudaLaunchKernel"), ("cuda_driver", "cuLaunchKernelEx"), ("hip_runtime", "hipGraphLaunch"),
        ("cuda_runtime", "hipExtModuleLaunchKernel"), ("privateuse1_runtime", "LaunchKernel")])
    @pytest.mark.parametrize("linked", [True, False])
    def test_launches_without_kernels_are_counted(self, tmp_path: Path, category: str, call: str, linked: bool) -> None:
        made = TraceMaker(deviceProperties=[GPU])
        made.operator("aten::mm", 0, 100)
        for number in range(1, 41):
            made.event(category, call, number, 1, **{"correlation": number} if linked else {})
        made.event(category, "cudaDeviceSynchronize", 90, 1, correlation=99)
        entry, _ = case_of(made, tmp_path)
        assert entry.device == "cuda"
        assert any(spot.startswith("the trace has launches (40) but no kernels, so that times are those of the host")
                   for spot in entry.passes.timing.blind_spots)

    def test_a_listed_device_without_work_is_named(self, tmp_path: Path) -> None:
        made = TraceMaker(deviceProperties=[GPU])
        made.operator("aten::mm", 0, 100)
        entry, _ = case_of(made, tmp_path)
        assert entry.device == "n/a"
        assert any("a GPU is listed, but no GPU activity is recorded" in spot
                   for spot in entry.passes.timing.blind_spots)
        made.operator("cudaDeviceSynchronize", 100, 50)
        entry, _ = case_of(made, tmp_path)
        assert entry.device == "cuda"
        assert any("a GPU is listed and cudaDeviceSynchronize called, but no GPU activity is recorded" in spot
                   for spot in entry.passes.timing.blind_spots)
        for sign in ({"Total Allocated": 1, "Device Type": 0}, None):
            made.events[-1] = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 100, "ts": 1,
                               "args": sign} if sign else made.events[0] | {"name": "aten::mkldnn_convolution"}
            entry, _ = case_of(made, tmp_path)
            assert (entry.device, entry.device_name) == ("cpu", None)
            assert not any("GPU" in spot for spot in entry.passes.timing.blind_spots)
        made.events.pop()
        made.operator("cudaDeviceSynchronize", 100, 50)
        made.beside = {}
        assert any("the program called cudaDeviceSynchronize, but no GPU activity" in spot
                   for spot in case_of(made, tmp_path)[0].passes.timing.blind_spots)
        made.events.pop()
        entry, _ = case_of(made, tmp_path)
        assert entry.device == "cpu"
        assert len(entry.passes.timing.blind_spots) == 1

    @pytest.mark.parametrize(("category", "device"), [
        ("mtia_ccp_events", "mtia"), ("hpu_op", "hpu"), ("cuda_profiler_range", "n/a"), ("<b>new</b>", "n/a")])
    def test_events_that_are_not_read_are_counted_and_named(self, tmp_path: Path, category: str, device: str) -> None:
        made = TraceMaker(deviceProperties=[{"id": 0, "name": "OTHER"}])
        made.operator("aten::mm", 0, 100)
        for number in range(3):
            made.event(category, "work", 200 + number, 5)
        for category_without_work in ("ac2g", "Trace", "gpu_user_annotation", "python_function", "overhead"):
            made.event(category_without_work, "x", 200, 5)
        made.events.append({"ph": "s", "cat": "flows", "name": "x", "ts": 1})
        entry, _ = case_of(made, tmp_path)
        assert entry.device == device
        assert [(each.what, each.num_dropped) for each in entry.passes.timing.dropped] == [
            (f"events of category {category}", 3)]
        assert any(spot.startswith(f"events of category {category} are not read")
                   for spot in entry.passes.timing.blind_spots)

    def test_many_categories_become_others(self, tmp_path: Path) -> None:
        made = TraceMaker()
        made.operator("aten::mm", 0, 100)
        for number in range(100):
            made.event(f"c{number}", "work", 200 + number, 5)
        entry, _ = case_of(made, tmp_path)
        numbers = {each.what: each.num_dropped for each in entry.passes.timing.dropped}
        assert len(numbers) == 21
        assert numbers["events of category others"] == 80


@pytest.mark.parametrize(("kernel", "operation"), [
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce"),
    ("ncclKernel_Generic_4(ncclDevComm*)", "unknown"), ("rcclGenericKernel", "unknown"),
    ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", "all_reduce"),
    ("void sglang::cross_device_reduce_2stage<half, 4>(sglang::RankData*)", "all_reduce"),
    ("void aiter::cross_device_reduce_2stage_write_mode<half, 8>(aiter::RankData*)", "all_reduce"),
    ("void tensorrt_llm::kernels::oneShotAllReduceKernel<__half, 8, true>(AllReduceParams)", "all_reduce"),
    ("void trtllm::twoShotAllReduceKernel<float, 2>(AllReduceParams)", "all_reduce"),
    ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(flashinfer::P)1>()",
     "all_reduce"),
    ("void (anonymous namespace)::one_shot_all_reduce_kernel<c10::BFloat16, 16, 8>(c10::BFloat16**)", "all_reduce"),
    ("void <unnamed>::multimem_all_reduce_kernel<c10::BFloat16, (int)16>(c10::BFloat16 *)", "all_reduce"),
    ("two_shot_all_reduce_kernel_inplace", "all_reduce"), ("multimem_one_shot_reduce", "unknown"),
    ("void (anonymous namespace)::multimem_all_gather_kernel<16>(char*)", "all_gather"),
    ("void quickreduce::allreduce_prototype_twoshot<quickreduce::Codec>(half const*)", "all_reduce"),
    ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*)", "dispatch"),
    ("void deep_ep::internode_ll::combine<true, 7168, 9>(void*)", "combine"),
    ("void deep_ep::intranode::notify_dispatch<8>(int const*)", "dispatch"),
    ("void mori::moe::EpDispatchIntraNodeKernel<hip_bfloat16>(EpArgs)", "dispatch"),
    ("void c10d::symmetric_memory::barrier_kernel(unsigned int**)", "barrier"), ("moeA2ADispatchKernel", "dispatch"),
    ("moeAlltoAllKernel", "all_to_all"), ("userbuffers_fp16_sum_inplace_gpu_rr_rs_oop", "unknown"),
])
def test_kernels_that_exchange(kernel: str, operation: str) -> None:
    assert is_collective(kernel)
    assert kernel_operation(kernel) == operation


@pytest.mark.parametrize("kernel", [
    "gemm", "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>()", "k<ncclDataType>(ncclComm*)",
    "void flash::flash_fwd_splitkv_combine_kernel<Traits>(Params)", "void deep_ep::layout::get_dispatch_layout<256>()",
    "void cub::DeviceReduceKernel<Policy>()", "softmax_warp_all_reduce<float>", "gemm_all_reduce_sm90",
    "moe_combine_kernel", "cutlass_80_tensorop_s16816gemm_f16", "void fused_dispatch<float>(float*)",
])
def test_kernels_that_compute(kernel: str) -> None:
    assert not is_collective(kernel)


def test_a_custom_all_reduce_is_exposed_communication(tmp_path: Path) -> None:
    made = TraceMaker(deviceProperties=[GPU])
    made.kernel("gemm", 10, 50, 300, by=made.operator("aten::mm", 0, 100))
    made.kernel("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", 210, 360, 200,
                by=made.operator("_C_custom_ar::all_reduce", 200, 50))
    case = case_of(made, tmp_path)
    used = counters(case)
    assert used[["communication_s", "exposed_communication_s"]].tolist() == pytest.approx([200e-6, 200e-6])
    phases = case[1]["iterations"].groupby("phase")["device_s"].sum()
    assert phases["communication"] == pytest.approx(200e-6)
    assert case[1]["collectives"][["operation", "exposed_s"]].to_numpy().tolist() == [
        ["all_reduce", pytest.approx(200e-6)]]
    read = ReadTrace(tmp_path / "made.json")
    assert used["exposed_communication_s"] * 1e6 == pytest.approx(
        covered_us(read.kernels()) - covered_us(read.spans("kernel", names=["reduce"], without=True)))


def test_the_work_for_collectives_is_proportional_to_their_number(tmp_path: Path,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    real = collectives.covered_ns

    class Counted(list[tuple[int, int]]):
        def __getitem__(self, place: Any) -> Any:
            found = super().__getitem__(place)
            looked_at.append(len(found) if isinstance(place, slice) else 1)
            return found

    monkeypatch.setattr(collectives, "covered_ns", lambda spans, *times: real(Counted(spans), *times))
    made = TraceMaker()
    made.operator("aten::mm", 0, 10_000)
    for number in range(400):
        made.kernel("gemm", 2 + 10 * number, 5 + 10 * number, 6)
        made.kernel("ncclDevKernel_AllReduce", 4 + 10 * number, 7 + 10 * number, 12, stream=20)
    rows = case_of(made, tmp_path)[1]["collectives"]
    assert len(rows) == 400
    assert rows["exposed_s"].sum() == pytest.approx(400 * 4e-6 + 4e-6, abs=9e-6)
    assert sum(looked_at) < 400 * 40


KERNELS = st.lists(st.tuples(
    st.integers(0, 3000), st.integers(0, 400), st.sampled_from(["gemm", "ncclDevKernel_AllReduce", "copy"]),
    st.sampled_from([7, 20])), min_size=1, max_size=12)


@given(KERNELS, st.none() | st.tuples(st.integers(0, 1500), st.integers(1, 1500)), st.booleans())
@settings(deadline=None, max_examples=60)
def test_counters_and_operators_are_those_of_an_independent_reader(
        kernels: list[tuple[int, int, str, int]], step: tuple[int, int] | None, with_operators: bool) -> None:
    """Times in ns as multiples of 3,000; each kernel is launched at a third of its start."""
    made = TraceMaker()
    if step is not None:
        made.mark("ProfilerStep#0", 3 * step[0], 3 * step[1])
    made.operator("aten::mm", 0, 1)
    for start, length, name, stream in kernels:
        by = made.operator("aten::mm", start, 0.25) if with_operators else None
        made.kernel(name, start, 3 * start, 3 * length, by=by, stream=stream,
                    cat="gpu_memcpy" if name == "copy" else "kernel")
    with tempfile.TemporaryDirectory() as directory:
        case = case_of(made, Path(directory))
        read = ReadTrace(Path(directory) / "made.json")
    used, running, exchanging = counters(case), read.kernels(), read.spans("kernel", names=["nccl"])
    assert used["busy_s"] * 1e6 == pytest.approx(covered_us(read.device()))
    assert used["communication_s"] * 1e6 == pytest.approx(covered_us(exchanging))
    assert used["exposed_communication_s"] * 1e6 == pytest.approx(
        covered_us(running) - covered_us(read.spans("kernel", names=["nccl"], without=True)))
    assert used["num_gaps"] == num_gaps(running)
    begin, end = min(span[0] for span in read.device()), max(span[1] for span in read.device())
    inside = kernels
    if step is not None:
        first, last = 3 * step[0], 3 * (step[0] + step[1])
        inside = [kernel for kernel in kernels if first <= kernel[0] <= last]
        window = (max([first, *(3 * (start + length) for start, length, *_ in kernels if start < first)]),
                  max([last, *(3 * (start + length) for start, length, *_ in kernels if start <= last)]))
        begin, end = window if window[0] < window[1] else (begin, end)
    share = covered_us(read.device(), Fraction(begin), Fraction(end)) / float(end - begin) if end > begin else 1
    assert used["utilization_frac"] == pytest.approx(share)
    if len(case[1]["operators"]):
        spent_us = sum(3 * length for _, length, *_ in inside)
        assert case[1]["operators"]["device_s"].sum() * 1e6 == pytest.approx(spent_us)
    by_name: dict[str, float] = {}
    for _, length, name, _ in inside:
        by_name[name] = by_name.get(name, 0) + 3 * length
    table = case[1]["kernels"]
    assert ((table.groupby("kernel")["device_s"].sum() * 1e6).to_dict() if len(table) else {}) == pytest.approx(by_name)
    if step is None and exchanging:
        assert case[1]["collectives"]["exposed_s"].sum() == pytest.approx(used["exposed_communication_s"])
        assert len(case[1]["collectives"]) == len(exchanging)
