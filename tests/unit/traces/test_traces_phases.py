"""Phases, iterations, operators and kernels of traces whose times are known."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.traces import ENGINE, TraceMaker, training

from charact.core.errors import UserError
from charact.core.timeline import Interval, Iteration
from charact.record.manifest import CaseEntry
from charact.record.manifest_passes import DroppedItems
from charact.record.schema import PHASES
from charact.traces.cases import trace_case
from charact.traces.event_filter import EventFilter
from charact.traces.events import DeviceEvent, Event, Launch, Mark, Operator, TraceEvents
from charact.traces.iterations import FoundIterations, find_iterations
from charact.traces.outline import Outline, outline
from charact.traces.phases import AttributedTrace, attribute
from charact.traces.reader import Trace, read_trace

Case = tuple[CaseEntry, dict[str, pd.DataFrame]]


def case_of(made: TraceMaker, tmp_path: Path) -> Case:
    entry, tables = trace_case(read_trace(made.write(tmp_path / "made.json.gz")), "made")
    return entry, {name: pd.DataFrame(rows) for name, rows in tables.items()}


def phase_us(case: Case, clock: str, iteration: int = 0) -> dict[str, float]:
    rows = case[1]["iterations"].query("iteration == @iteration")
    return {row.phase: round(getattr(row, clock) * 1e6, 3) for row in rows.itertuples() if getattr(row, clock)}


class TestTraining:
    @pytest.fixture
    def case(self, tmp_path: Path) -> Case:
        return case_of(training(), tmp_path)

    def test_the_host_spends_what_the_marks_say(self, case: Case) -> None:
        expected = {"data": 100, "forward": 300, "loss": 50, "backward": 350, "update": 100, "other": 100}
        assert phase_us(case, "host_s") == expected
        walls = case[1]["iterations"].groupby("iteration")[["host_s", "device_s"]].sum()
        assert walls["host_s"].tolist() == pytest.approx([1e-3] * 3)
        assert walls["device_s"].tolist() == pytest.approx([1.7e-3, 1.2e-3, 1.2e-3])
        timing = case[0].passes.timing
        assert timing.inferred_frac == timing.attributed_frac == 1
        assert timing.evidence == {
            "data": ["DataLoader’s mark"], "forward": ["calls of modules"], "loss": ["between forward and backward"],
            "backward": ["autograd’s nodes"], "update": ["optimizer’s mark"],
        }
        assert timing.blind_spots == []
        assert (case[0].case, case[0].mode, case[0].device) == ("made-train", "train", "cuda")
        used = case[1]["counters"].set_index("counter")["value"]
        per_trace = {"span_s": 3600e-6, "busy_s": 3600e-6, "idle_s": 0, "utilization_frac": 3600 / 4100,
                     "computation_s": 3000e-6, "communication_s": 900e-6,
                     "exposed_communication_s": 600e-6, "copy_s": 0, "exposed_copy_s": 0,
                     "overlapped_communication_s": 300e-6, "num_gaps": 0, "gap_s": 0, "launch_delay_s": 648e-6,
                     "tensor_core_frac": 0, "warp_occupancy_frac": 0.5}
        assert used.to_dict() == pytest.approx(per_trace)

    @pytest.mark.parametrize("iteration", [0, 1, 2])
    def test_the_device_spends_what_events_would_tell(self, case: Case, iteration: int) -> None:
        # The first iteration finds the device idle: it waits for the first launch while data is fetched.
        waiting = {"data": 100, "forward": 700} if iteration == 0 else {"forward": 300}
        backward = {"loss": 20, "backward": 500, "communication": 200, "update": 180}
        assert phase_us(case, "device_s", iteration) == {**waiting, **backward}

    def test_operators_kernels_and_layers(self, case: Case) -> None:
        operators = case[1]["operators"].set_index("operator")
        linear = operators.loc["aten::addmm"]
        assert (linear["phase"], linear["layer"], linear["operator_type"]) == ("forward", "Linear_0", "GEMM")
        assert linear["input_shapes"] == '[[8,4],[4],"2_tensors"]'
        assert linear[["num_calls", "self_host_s", "device_s"]].tolist() == pytest.approx([1, 80e-6, 300e-6])
        backward = operators.loc["aten::mm"]
        assert (backward["phase"], backward["layer"]) == ("backward", "Linear_0")
        node = operators.loc["autograd::engine::evaluate_function: AddmmBackward0"]
        assert node["self_host_s"] == pytest.approx(100e-6)
        assert operators.loc["nccl:all_reduce"]["phase"] == "communication"
        kernels = case[1]["kernels"].set_index("kernel")
        gemm = kernels.loc["gemm"]
        assert gemm[["phase", "operator", "grid", "block"]].tolist() == [
            "forward", "aten::addmm", "[4,1,1]", "[128,1,1]"]
        assert gemm[["registers", "shared_memory_bytes", "occupancy_frac", "device_s"]].tolist() == pytest.approx(
            [32, 64, 0.5, 300e-6])
        assert kernels["phase"].to_dict() == {"gemm": "forward", "mse": "loss", "gemm_grad": "backward",
                                              "ncclDevKernel_AllReduce": "communication", "foreach": "update"}
        assert case[1]["layers"][["layer", "layer_type"]].to_numpy().tolist() == [["Net_0", "Net"],
                                                                                 ["Linear_0", "Linear"]]

def forward_backward(made: TraceMaker, at: float, *, zero_grad: bool = False) -> None:
    made.operator("aten::linear", at, 100)
    made.operator("aten::mse_loss", at + 110, 20)
    if zero_grad:
        made.mark("Optimizer.zero_grad#SGD.zero_grad", at + 140, 20)
    made.operator("autograd::engine::evaluate_function: LinearBackward0", at + 200, 100, ENGINE)


class TestRules:
    def test_without_modules_operators_before_the_loss_are_forward(self, tmp_path: Path) -> None:
        made = TraceMaker()
        made.mark("ProfilerStep#1", 0, 500)
        forward_backward(made, 50)
        assert phase_us(case_of(made, tmp_path), "host_s") == {"data": 50, "forward": 100, "loss": 100, "backward": 100,
                                                               "other": 150}
        made = TraceMaker()
        made.mark("ProfilerStep#1", 0, 500)
        forward_backward(made, 50, zero_grad=True)
        assert phase_us(case_of(made, tmp_path), "host_s") == {"data": 50, "forward": 100, "loss": 40, "update": 20,
                                                               "backward": 100, "other": 190}
        made = TraceMaker()
        made.mark("ProfilerStep#1", 0, 1000)
        for at in (0, 400):
            forward_backward(made, at)
        made.mark("Optimizer.step#SGD.step", 800, 100)
        assert phase_us(case_of(made, tmp_path), "host_s") == {"forward": 200, "loss": 200, "backward": 200,
                                                               "update": 100, "other": 300}

    def test_what_is_no_forward(self, tmp_path: Path) -> None:
        made = TraceMaker()
        made.mark("ProfilerStep#1", 0, 600)
        forward_backward(made, 0)
        made.operator("aten::_foreach_norm", 320, 50)
        made.mark("Optimizer.step#SGD.step", 400, 100)
        assert phase_us(case_of(made, tmp_path), "host_s")["forward"] == 100
        made = TraceMaker()
        made.mark("ProfilerStep#1", 0, 300)
        made.module("Net_0", 0, 100)
        made.module("CrossEntropyLoss_0", 120, 30)
        made.operator("aten::linear", 10, 50)
        assert phase_us(case_of(made, tmp_path), "host_s") == {"forward": 100, "loss": 30, "other": 170}
        made = TraceMaker()
        made.mark("ProfilerStep#1", 0, 500)
        made.mark("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 0, 50)
        upload = made.operator("aten::to", 60, 40)
        made.kernel("Memcpy HtoD (Pinned -> Device)", 70, 90, 10, by=upload, cat="gpu_memcpy")
        made.kernel("gemm", 130, 150, 10, by=made.operator("aten::linear", 120, 100))
        assert phase_us(case_of(made, tmp_path), "host_s") == {"data": 90, "forward": 100, "other": 310}

    def test_a_call_of_backward_lasts_longer_than_its_nodes(self, tmp_path: Path) -> None:
        made = TraceMaker()
        made.mark("ProfilerStep#1", 0, 500)
        forward_backward(made, 0)
        made.event("python_function", "torch/_tensor.py(570): backward", 150, 250)
        phases = phase_us(case_of(made, tmp_path), "host_s")
        assert (phases["loss"], phases["backward"]) == (50, 250)

    def test_inference_has_forward_alone(self, tmp_path: Path) -> None:
        made = TraceMaker()
        made.mark("ProfilerStep#1", 0, 300)
        made.operator("aten::linear", 0, 100)
        made.operator("aten::relu", 120, 80)
        entry, tables = case = case_of(made, tmp_path)
        assert phase_us(case, "host_s") == {"forward": 200, "other": 100}
        assert (entry.mode, entry.device) == ("infer", "cpu")
        assert tables["iterations"]["device_s"].isna().all()
        assert entry.passes.kernels.status == "skipped"

    def test_characts_marks_are_taken_as_they_are(self, tmp_path: Path) -> None:
        made = TraceMaker()
        made.mark("ProfilerStep#0", 0, 500)
        for phase, at, length in (("data", 0, 50), ("forward", 60, 100), ("backward", 200, 100), ("update", 300, 50)):
            made.mark(f"charact.phase:{phase}", at, length)
        made.mark("charact.layer:body.0", 70, 50)
        made.operator("aten::linear", 80, 20)
        made.module("Linear_0", 75, 40)
        entry, tables = case = case_of(made, tmp_path)
        assert phase_us(case, "host_s") == {"data": 50, "forward": 100, "loss": 40, "backward": 100, "update": 50,
                                            "other": 160}
        assert tables["operators"]["layer"].tolist() == ["body.0"]
        assert len(tables["layers"]) == 0
        timing = entry.passes.timing
        assert timing.inferred_frac == pytest.approx(40 / 500)  # the loss by hand
        assert timing.own_marks is True

    def test_without_steps_or_operators(self, tmp_path: Path) -> None:
        made = TraceMaker()
        made.operator("aten::linear", 10, 100)
        made.operator("aten::linear", 210, 100)
        entry, tables = case = case_of(made, tmp_path)
        assert sum(phase_us(case, "host_s").values()) == 300
        assert tables["operators"]["num_calls"].tolist() == [2]
        assert "marks no iterations" in entry.passes.timing.blind_spots[0]
        made = TraceMaker()
        made.kernel("gemm", 0, 10, 90)
        entry, tables = case_of(made, tmp_path)
        assert entry.passes.operators.status == "failed"
        assert any("no operators" in spot for spot in entry.passes.timing.blind_spots)
        assert tables["kernels"][["kernel", "operator"]].to_numpy().tolist() == [["gemm", None]]

    def test_what_was_launched_before_the_trace_belongs_to_no_iteration(self, tmp_path: Path) -> None:
        made = training(2)
        made.event("kernel", "earlier", 100, 380, 7, device=0, stream=7, correlation=99_999)
        _, tables = case = case_of(made, tmp_path)
        assert "earlier" not in tables["kernels"]["kernel"].tolist()
        # It ends at 480, when nothing of the first iteration has begun: that waits for it.
        assert phase_us(case, "device_s")["forward"] == 320

    def test_other_profilers(self, tmp_path: Path) -> None:
        made = TraceMaker()
        made.event("cuda_runtime", "hipLaunchKernel", 5, 1, correlation=1, grid=[2, 1, 1], block=[64, 1, 1])
        made.event("kernel", "k", 10, 5, 0, device=2, stream=0, correlation=1)
        operator = made.operator("aten::add", 0, 10)
        kernels = case_of(made, tmp_path)[1]["kernels"]
        assert operator == 1
        assert kernels[["grid", "block", "operator"]].to_numpy().tolist() == [["[2,1,1]", "[64,1,1]", "aten::add"]]
        made = TraceMaker()
        made.event("Operator", "aten::linear", 0, 100, **{"external id": 3, "Input dims": [[2, 2]]})
        made.event("Runtime", "cudaLaunchKernel", 10, 1, correlation=1)
        made.event("Kernel", "gemm", 20, 30, 7, **{"external id": 3, "correlation": 1, "stream": 7, "device": 0})
        operators = case_of(made, tmp_path)[1]["operators"]
        assert operators["input_shapes"].tolist() == ["[[2,2]]"]
        assert operators["device_s"].tolist() == pytest.approx([30e-6])

    @pytest.mark.parametrize(("warps", "occupancy"), [(10.9, None), (0.06, 0.0), (None, None)])
    def test_an_occupancy_of_nothing_is_missing_unless_there_were_hardly_any_warps(
            self, tmp_path: Path, warps: float | None, occupancy: float | None) -> None:
        made = TraceMaker()
        made.kernel("gemm", 0, 10, 90, **{"est. achieved occupancy %": 0, "warps per SM": warps})
        _, tables = trace_case(read_trace(made.write(tmp_path / "a.json")), "a")
        assert tables["kernels"][0]["occupancy_frac"] == occupancy

class TestMemory:
    def test_the_last_iterations_peaks_are_told_and_of_unknown_use(self, tmp_path: Path) -> None:
        made = training(1)
        for at, held in ((50, 100), (150, 700), (500, 900), (950, 200)):
            made.events.append({"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 100,
                                "ts": at, "args": {"Total Allocated": held, "Device Type": 1}})
        memory = case_of(made, tmp_path)[1]["memory"]
        assert set(memory["category"]) == {"unknown"}
        peak = memory.query("kind == 'peak'")
        assert peak[["phase", "bytes"]].to_numpy().tolist() == [["backward", 900]]
        by_phase = memory.query("kind == 'phase_peak'").set_index("phase")["bytes"].to_dict()
        assert by_phase == {"data": 100, "forward": 700, "backward": 900, "other": 200}
        timeline = memory.query("kind == 'timeline'")
        assert timeline["time_s"].tolist() == pytest.approx([50e-6, 150e-6, 500e-6, 950e-6])


MOMENTS = st.integers(-20, 200)
SOUP = st.lists(st.tuples(
    st.sampled_from(["cpu_op", "user_annotation", "python_function", "kernel", "gpu_memcpy", "cuda_runtime", "ac2g",
                     "mtia_op"]),
    st.sampled_from(["ProfilerStep#1", "aten::mm", "AddmmBackward0", "aten::mse_loss", "Optimizer.step#SGD.step",
                     "Optimizer.zero_grad#A", "enumerate(DataLoader)#x.__next__", "nn.Module: Net_0", "nccl:all_reduce",
                     "nn.Module: MSELoss_0", "torch/_tensor.py(5): backward", "ncclDevKernel", "Memcpy HtoD (a -> b)",
                     "autograd::engine::evaluate_function: x", "charact.phase:forward", "charact.phase:strange",
                     "charact.layer:a", "## forward ##", "loss", "backward_pass", "optimizer", "copy_batch_to_gpu",
                     "DistributedDataParallel.forward", "cudaGraphLaunch", "ProfilerStep#2"]),
    MOMENTS, st.integers(-5, 120), st.sampled_from([100, 200]), st.integers(1, 6)), max_size=25)


@given(SOUP)
@settings(deadline=None)
def test_whatever_a_trace_holds_phases_sum_to_the_iteration(soup: list[tuple[str, str, int, int, int, int]]) -> None:
    event_filter = EventFilter()
    made = TraceMaker()
    for cat, name, at, length, tid, number in soup:
        # Of ids and numbers some are equal, some belong together, some to nothing.
        made.event(cat, name, at, length, tid, correlation=number, **{"External id": number, "Sequence number": number})
    event_filter.add(msgspec.json.decode(json.dumps(made.events), type=list[Event]))
    trace = Trace(Path("soup"), event_filter.events, None, None, [], {})
    try:
        _, tables = trace_case(trace, "soup")
    except UserError:
        return
    rows = pd.DataFrame(tables["iterations"])
    assert rows["phase"].isin(PHASES).all()
    walls_s = [iteration.wall_s for iteration in attribute(event_filter.events).found.iterations]
    assert rows.groupby("iteration")["host_s"].sum().tolist() == pytest.approx(walls_s)
    assert (rows["host_s"] >= 0).all()
    assert not (rows["device_s"].dropna() < 0).any()
    assert all(row["self_host_s"] >= 0 for row in tables["operators"])


class TestNothing:
    def test_traces_of_nothing_are_refused(self, tmp_path: Path) -> None:
        made = TraceMaker()
        made.mark("ProfilerStep#0", 0, 10)
        with pytest.raises(UserError, match="neither operators nor kernels"):
            case_of(made, tmp_path)
        made = TraceMaker()
        made.operator("aten::linear", 5, 0)
        with pytest.raises(UserError, match="no events with a duration"):
            case_of(made, tmp_path)

    @pytest.mark.parametrize("broken", [
        {"dur": -5}, {"dur": None}, {"ts": None}, {"ts": 1e300}, {"dur": 1e300}, {"ts": -1e300},
    ])
    def test_an_event_without_sound_times_is_left_out_and_said_so(self, tmp_path: Path, broken: dict[str, Any]) -> None:
        made = training(1)
        made.event("cpu_op", "aten::broken", 10, 5).update(broken)
        entry, tables = case_of(made, tmp_path)
        assert "aten::broken" not in tables["operators"]["operator"].tolist()
        assert entry.passes.timing.dropped == [
            DroppedItems("events", "no end, an end before the start, or an impossible time", 1)]


@pytest.mark.parametrize(("steps", "expected"), [
    ([(0, 10), (10, 20)], [(0, 10), (10, 20)]), ([(10, 20), (0, 10)], [(0, 10), (10, 20)]),
    ([(0, 10), (9, 20), (20, 30)], [(0, 10), (20, 30)]), ([(5, 5), (5, 6)], [(5, 6)]), ([(3, 3)], []),
    ([], [(-4, 90)])])
def test_iterations_are_the_steps_without_overlap_else_all_of_the_trace(
        steps: list[tuple[int, int]], expected: list[tuple[int, int]]) -> None:
    geometry = (None,) * 5
    events = TraceEvents(
        marks=[Mark((1, 1), *step, "ProfilerStep#1") for step in steps],
        operators=[Operator((1, 1), 0, 50, "aten::mm", None, "[]")], launches={1: Launch((1, 1), -4, None, geometry)},
        device=[DeviceEvent(60, 90, "k", "kernel", "0", "7", None, None, geometry)])
    found = find_iterations(events, Outline())
    assert [(each.start_ns, each.end_ns) for each in found.iterations] == expected
    assert (found.marks, found.num_partial) == ("steps" if steps else None, 0)
    if not steps:
        assert find_iterations(TraceEvents(), Outline()).iterations == []


def test_the_phase_at_the_edges_of_iterations() -> None:
    iterations = [Iteration(10, 20, [Interval("forward", 12, 15)]), Iteration(30, 40, [Interval("loss", 30, 40)])]
    trace = AttributedTrace(TraceEvents(), Outline(), iterations, FoundIterations(iterations, "steps"))
    assert [trace.phase_at(moment) for moment in (None, 9, 10, 12, 14, 15, 20, 21, 29, 30, 39, 40, 41)] == [
        None, None, "other", "forward", "forward", "other", "other", None, None, "loss", "loss", "other", None]


@pytest.mark.parametrize(("steps", "modules", "operators", "main"), [
    ([(1, 5)], [(2, 9)], [("aten::mm", 3, 99)], 1), ([], [(2, 4), (2, 4), (1, 9)], [("aten::mm", 3, 99)], 1),
    ([], [], [("aten::mm", 3, 5), ("MmBackward0", 4, 99)], 3), ([], [], [("MmBackward0", 4, 99)], 4),
    ([], [], [], None)])
def test_the_main_thread(steps: list[tuple[int, int]], modules: list[tuple[int, int]],
                         operators: list[tuple[str, int, int]], main: int | None) -> None:
    events = TraceEvents(
        marks=[Mark((1, thread), 100, 100 + length, "ProfilerStep#1") for thread, length in steps],
        modules=[Mark((1, thread), 100, 100 + length, "N_0") for thread, length in modules],
        operators=[Operator((1, thread), 100, 100 + length, name, None, "[]") for name, thread, length in operators])
    assert outline(events).main == (None if main is None else (1, main))
    if main not in (1, None):
        events.named = [Mark((1, 7), 100, 101, "forward")]
        assert outline(events).main == (1, 7)
        events.marks = [Mark((1, 8), 100, 102, "Optimizer.step#SGD.step")]
        assert outline(events).main == (1, 8)
