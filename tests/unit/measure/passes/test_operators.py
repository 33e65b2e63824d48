"""The operator pass on a real model, and its joins on made-up rows."""

import gc
import gzip
import json
import weakref
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from support.small import small_case
from support.traces import TraceMaker
from torch.profiler import record_function

from charact.core.errors import UserError
from charact.execution.loop import Loop
from charact.measure.passes import operators
from charact.measure.passes.event_tree import EventTree, Operator, _shapes
from charact.measure.passes.marks import phase_mark
from charact.measure.passes.operators import (
    OperatorProbe,
    ProfiledIteration,
    attribute_flop,
    operator_pass,
    operator_rows,
    undisturbed,
)
from charact.traces.device_events import device_ns_by_operator
from charact.traces.phases import attribute
from charact.traces.reader import read_trace
from charact.traces.tables import kernel_rows
from charact.workload.registry import all_workloads

pytestmark = pytest.mark.clock

TRACES = Path(__file__).parents[5] / "shared" / "traces"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    trace = tmp_path_factory.mktemp("trace") / "case.pt.trace.json.gz"
    return operator_pass(Loop(small_case("train")), trace), trace


def test_each_matrix_product_is_in_its_phase_and_layer(found: Any) -> None:
    calls: dict[tuple[str, str | None], float] = defaultdict(float)
    for row in found[0].operator_rows:
        if row["operator"] == "aten::mm":
            calls[row["phase"], row["layer"]] += row["num_calls"]
    # Forward: one a layer. Backward: by weight for both, by input for the second only. Layers are Sequential's.
    assert calls == {("forward", "0"): 1, ("forward", "2"): 1, ("backward", "0"): 1, ("backward", "2"): 2}


def test_rows_are_per_iteration_and_fit_into_their_phases(found: Any) -> None:
    operators, _ = found
    seconds: dict[str, float] = defaultdict(float)
    for row in operators.operator_rows:
        assert row["self_host_s"] >= 0
        assert row["device_s"] is None
        seconds[row["phase"]] += row["self_host_s"]
    phase_s = operators.facts.phase_s
    assert set(phase_s) == {"data", "forward", "loss", "backward", "update", "other"}
    assert all(0 < seconds[phase] <= phase_s[phase] for phase in phase_s if phase != "other")
    assert sum(phase_s.values()) <= 1.5 * operators.facts.iteration_s
    assert operators.kernel_rows == []


def test_operators_in_no_phase_are_other_and_one_that_calls_itself_counts_once(tmp_path: Path) -> None:
    probe = OperatorProbe(tmp_path / "trace.json.gz", torch.device("cpu"))
    probe.begin()
    # Such as a mean that calls the one for another layout.
    with phase_mark("forward"), record_function("aten::mean"), record_function("aten::mean"):
        torch.ones(100).mul(2)
    for _ in range(3):
        torch.linalg.norm(torch.ones(100))
    probe.end(last=True)
    found = probe.found()
    rows = {(row["phase"], row["operator"]): row for row in found.operator_rows}
    assert rows["forward", "aten::mean"]["num_calls"] == 1
    assert len([row for row in found.operator_rows if row["operator"] == "aten::mean"]) == 1
    assert rows["other", "aten::linalg_vector_norm"]["num_calls"] == 3
    other_s = sum(row["self_host_s"] for (phase, _), row in rows.items() if phase == "other")
    assert 0 < other_s <= found.facts.phase_s["other"]
    assert sum(found.facts.phase_s.values()) == pytest.approx(found.facts.iteration_s)


@pytest.mark.parametrize("has_kernels", [False, True])
def test_a_trace_without_kernels_fails_the_pass(tmp_path: Path, has_kernels: bool) -> None:
    made = TraceMaker()
    made.mark("ProfilerStep#0", 0, 1000)
    operator = made.operator("aten::mm", 100, 80)
    if has_kernels:
        made.kernel("gemm", 130, 500, 300, by=operator)
    probe = OperatorProbe(tmp_path / "trace.json.gz", torch.device("cpu"))
    probe.begin()
    torch.ones(2)
    probe.end(last=True)
    probe._on_cuda = True
    probe._traces = [attribute(read_trace(made.write(tmp_path / "made.json")).events)]
    if has_kernels:
        assert [row["kernel"] for row in probe.found().kernel_rows] == ["gemm"]
    else:
        with pytest.raises(UserError, match="recorded no kernels: another profiler may hold the device"):
            probe.found()


def test_the_trace_holds_phases_and_steps(found: Any) -> None:
    events = json.loads(gzip.decompress(found[1].read_bytes()))["traceEvents"]
    names = [event["name"] for event in events if event.get("cat") == "user_annotation"]
    assert names.count("charact.phase:backward") == 1
    last = found[0].facts.num_iterations - 1
    assert [name for name in names if name.startswith("ProfilerStep#")] == [f"ProfilerStep#{last}"]


def test_no_mark_is_left_on_the_model(tmp_path: Path) -> None:
    loop = Loop(small_case("infer"))
    operator_pass(loop, tmp_path / "trace.json")
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in loop.model.modules())


@pytest.mark.slow
def test_operator_time_is_known_by_type_on_every_workload(tmp_path: Path) -> None:
    """At least 98 % of the time of every workload's operators has a type; seconds-long: one iteration at 32 px."""
    unknown: dict[str, float] = {}
    for name in ("resnet18", "resnet50", "vgg11", "vgg16_bn"):
        workload = all_workloads()[name].prepare("cifar")
        case = small_case("train", batch_size=2, workload=workload)
        case = type(case)(workload, 32, 2, "train", "fp32", case.device, case.data)
        rows = operator_pass(Loop(case), tmp_path / "trace.json", num_iterations=1).operator_rows
        total = sum(row["self_host_s"] for row in rows)
        unknown[name] = sum(row["self_host_s"] for row in rows if row["operator_type"] == "other") / total
        layerless = sum(row["self_host_s"] for row in rows if row["phase"] == "backward" and row["layer"] is None)
        assert layerless <= 0.1 * total, name
    assert all(share <= 0.02 for share in unknown.values()), unknown


def test_shapes_are_json_and_lists_of_tensors_are_counted() -> None:
    class Tensor:
        sizes = (8, 3)

    Tensor.sizes = [8, 3]  # type: ignore[assignment]
    assert json.loads(_shapes([Tensor(), 1, None, [Tensor(), Tensor()], [1, 2]])) == [[8, 3], "2_tensors"]


def row(phase: str, operator: str, kind: str, layer: str | None, seconds: float) -> dict[str, Any]:
    return {"phase": phase, "operator": operator, "operator_type": kind, "layer": layer, "self_host_s": seconds,
            "device_s": None, "flop": None, "bytes": None}


def test_the_type_is_that_of_the_first_floating_point_input_as_in_the_trace(tmp_path: Path) -> None:
    probe = OperatorProbe(tmp_path / "trace.json.gz", torch.device("cpu"))
    ids, wide, narrow = torch.arange(3), torch.ones(3, dtype=torch.float64), torch.ones(3)
    probe.begin()
    with phase_mark("forward"):
        narrow[ids] * wide * 2
        narrow.add(1)
        ids.add(1)
        torch._foreach_exp([wide])
    probe.end(last=True)
    operators = {row["operator"]: row["dtype"] for row in probe.found().operator_rows}
    expected = {"aten::index": "float32", "aten::add": None, "aten::_foreach_exp": "float64"}
    assert {name: operators[name] for name in expected} == expected
    types = {(row["operator"], row["dtype"]) for row in probe.found().operator_rows}
    assert {("aten::mul", "float32"), ("aten::mul", "float64"), ("aten::add", "float32")} <= types
    kept = read_trace(tmp_path / "trace.json.gz").events
    lists = {("aten::_foreach_exp", "float64")}
    assert {(one.name, one.dtype) for one in kept.operators if one.name in expected or one.name == "aten::mul"} == {
        one for one in types - lists if one[0] in expected or one[0] == "aten::mul"} | {("aten::_foreach_exp", None)}


def test_flop_go_to_the_row_that_holds_the_time_of_their_layer() -> None:
    rows = [row("forward", "aten::convolution", "convolution", "a", 1e-6),
            row("forward", "aten::mkldnn_convolution", "convolution", "a", 1e-2),
            row("forward", "aten::mkldnn_convolution", "convolution", "b", 1e-2)]
    unplaced = attribute_flop(rows, [
                      {"phase": "forward", "layer": "a", "operator_type": "convolution", "flop": 7.0, "bytes": 3.0},
                      {"phase": "forward", "layer": "a", "operator_type": "convolution", "flop": 1.0, "bytes": 1.0},
                      {"phase": "forward", "layer": "z", "operator_type": "convolution", "flop": 9.0, "bytes": 9.0},
                      {"phase": "forward", "layer": "b", "operator_type": "GEMM", "flop": 5.0, "bytes": None}])
    assert [(entry["flop"], entry["bytes"]) for entry in rows] == [(None, None), (8.0, 4.0), (5.0, None)]
    assert unplaced == {"unplaced_flop": 9.0, "unplaced_bytes": 9.0}


def test_device_time_is_that_of_the_operator_which_launched_the_kernel() -> None:
    call = Operator("forward", "aten::addmm", "GEMM", "0", "[]", self_ns=2_000, correlation_id=5)
    profiled = [ProfiledIteration(EventTree(operators=[call]), {5: 3_000, 6: 1}),
                ProfiledIteration(EventTree(operators=[call]), {5: 5_000})]
    (only,) = operator_rows(profiled)
    assert (only["num_calls"], only["self_host_s"], only["device_s"]) == (1.0, 2e-6, 4e-6)


class FakeProfiler:
    """Stands for torch.profiler on a machine with a GPU: writes a made trace."""

    number = 0

    def __init__(self, **_: Any) -> None:
        """Nothing is recorded."""

    def start(self) -> None:
        """Nothing."""

    def stop(self) -> None:
        """Nothing."""

    def export_chrome_trace(self, path: str) -> None:
        """A product in the forward pass, whose kernel takes 300 µs in the first iteration and 500 in the others."""
        made = TraceMaker()
        made.mark("ProfilerStep#0", 0, 1000)
        made.mark("charact.phase:forward", 0, 200)
        made.mark("charact.phase:backward", 250, 700)
        operator = made.operator("aten::mm", 10, 100)
        geometry = {"grid": [4, 1, 1], "block": [128, 1, 1], "registers per thread": 32, "shared memory": 64,
                    "est. achieved occupancy %": 25}
        made.kernel("sm80_s16816gemm", 20, 300, 300 + 100 * FakeProfiler.number, by=operator, **geometry)
        made.kernel("Memset (Device)", 300, 900, 50, cat="gpu_memset")
        FakeProfiler.number += 1
        made.write(Path(path))


def test_a_gpus_kernels_operators_and_counters_come_from_the_exported_traces(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call = Operator("forward", "aten::mm", "GEMM", "0", "[]", self_ns=100_000, correlation_id=1)
    monkeypatch.setattr(FakeProfiler, "number", 0)
    monkeypatch.setattr(operators, "profile", FakeProfiler)
    monkeypatch.setattr(operators, "read_event_tree", lambda *_, **__: EventTree(operators=[call]))
    monkeypatch.setattr("torch.cuda.synchronize", lambda _: None)
    clock = iter([0, 1, 1, 9, 9, 10])  # the second iteration is disturbed, and takes 8 s
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    probe = operators.OperatorProbe(tmp_path / "case.pt.trace.json.gz", torch.device("cuda", 0))
    for last in (False, False, True):
        probe.begin()
        probe.end(last=last)
    found = probe.found()
    assert [(row["num_calls"], row["device_s"]) for row in found.operator_rows] == [(1.0, pytest.approx(400e-6))]
    product, fill = found.kernel_rows
    assert product == {"phase": "forward", "operator": "aten::mm", "kernel": "sm80_s16816gemm", "num_calls": 1.0,
                       "device_s": pytest.approx(400e-6), "grid": "[4,1,1]", "block": "[128,1,1]", "registers": 32,
                       "shared_memory_bytes": 64, "occupancy_frac": 0.25}
    assert (fill["phase"], fill["operator"], fill["num_calls"], fill["grid"]) == ("backward", None, 1.0, None)
    counters = {row["counter"]: row["value"] for row in found.counter_rows}
    assert counters["busy_s"] == pytest.approx((300 + 500 + 2 * 50) * 1e-6)
    assert counters["launch_delay_s"] == pytest.approx(280e-6)
    assert (counters["tensor_core_frac"], counters["warp_occupancy_frac"]) == (1.0, 0.25)


def iteration_of(*names: str, phase: str = "forward") -> ProfiledIteration:
    return ProfiledIteration(EventTree(operators=[
        Operator(phase, name, "GEMM", "0", "[]", self_ns=1, correlation_id=1) for name in names]), None)


class TestUndisturbed:
    def test_the_quicker_half_of_those_that_did_the_same_counts(self) -> None:
        alike = [iteration_of("aten::mm", "aten::add") for _ in range(5)]
        assert undisturbed(alike, [3.0, 1.0, 9.0, 2.0, 4.0]) == [0, 1, 3]
        assert undisturbed(alike[:1], [3.0]) == [0]

    def test_all_count_where_one_did_something_else(self) -> None:
        others = [iteration_of("aten::mm"), iteration_of("aten::mm", "aten::mm"), iteration_of("aten::mm")]
        assert undisturbed(others, [3.0, 1.0, 9.0]) == [0, 1, 2]

    def test_an_epochs_beginning_does_not_count_as_something_else(self) -> None:
        begins = iteration_of("aten::randperm", phase="data")
        assert undisturbed([begins, iteration_of(), iteration_of()], [3.0, 1.0, 2.0]) == [1, 2]


@pytest.mark.skipif(not TRACES.is_dir(), reason="needs recorded traces in ../shared/traces")
def test_a_recorded_trace_loses_no_kernel_and_no_time() -> None:
    path = TRACES / "h100_vit_infer.json.gz"
    placed = attribute(read_trace(path).events)
    rows = kernel_rows([placed])
    raw = [entry for entry in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
           if entry.get("cat") == "kernel"]
    kernels = [row for row in rows if row["grid"] is not None]
    assert sum(row["num_calls"] for row in kernels) * len(placed.iterations) == pytest.approx(len(raw))
    spent_s = sum(row["device_s"] for row in kernels) * len(placed.iterations)
    assert spent_s == pytest.approx(sum(entry["dur"] for entry in raw) / 1e6)
    assert sum(row["num_calls"] for row in kernels if row["operator"]) / len(raw) > 0.99
    assert all(0 <= row["occupancy_frac"] <= 1 for row in kernels if row["occupancy_frac"] is not None)
    assert {row["operator"] for row in kernels} >= {"aten::addmm"}
    by_operator = device_ns_by_operator(placed.events)
    of_all_s = sum(row["device_s"] for row in rows) * len(placed.iterations)
    assert sum(by_operator.values()) / 1e9 == pytest.approx(of_all_s, rel=0.01)


def test_short_iterations_are_profiled_more_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def profiled(enough_s: float) -> int:
        monkeypatch.setattr(operators, "_MIN_PROFILED_S", enough_s)
        found = operator_pass(Loop(small_case("infer")), tmp_path / "trace.json")
        return int(found.facts.num_iterations)

    assert (profiled(0.0), profiled(1e9)) == (3, 12)


def test_nothing_of_an_iteration_stays_behind(tmp_path: Path) -> None:
    probe = operators.OperatorProbe(tmp_path / "trace.json", torch.device("cpu"))
    gc.collect()
    gc.disable()
    try:
        probe.begin()
        profiler = weakref.ref(probe._profiler)
        results = weakref.ref(probe._profiler.profiler)
        torch.ones(3).add(1)
        probe.end(last=False)
        assert (profiler(), results()) == (None, None)
    finally:
        gc.enable()


def test_reading_the_events_does_not_count_as_profiled_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA every iteration's trace is written and read, which takes longer than the iteration."""
    now_s = 0.0

    class Probe:
        def __init__(self, *_: object) -> None:
            self._wall_s: list[float] = []

        def begin(self) -> None:
            self._begun = now_s

        def end(self, *, last: bool) -> None:
            nonlocal now_s
            self._wall_s.append(now_s - self._begun)
            now_s += 2.0

        def found(self) -> int:
            return len(self._wall_s)

        profiled_s = OperatorProbe.profiled_s

    def iteration(mark: object) -> None:
        nonlocal now_s
        now_s += 0.06

    loop = Loop(small_case("infer"))
    monkeypatch.setattr(loop, "iteration", iteration)
    monkeypatch.setattr(operators, "OperatorProbe", Probe)
    monkeypatch.setattr(operators.time, "perf_counter", lambda: now_s)
    assert operator_pass(loop, tmp_path / "trace.json") == 9  # half a second of iterations
    loop.close()
