"""The memory pass against a network whose bytes are worked out by hand, and a stub of CUDA's allocator."""

from collections import defaultdict
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.small import WIDTH, TwoLayers, small_case
from torch import nn
from torch.utils.data import TensorDataset

from charact.datasets._common.request import DataRequest
from charact.execution.batches import Batches
from charact.execution.case import Case
from charact.execution.loop import Loop
from charact.measure.passes.event_tree import Allocation, EventTree
from charact.measure.passes.memory_pass import (
    BlockOwners,
    MemoryProbe,
    curve_of,
    marked_iteration,
    memory_pass,
    probe_for,
    released_workspaces,
    run_under,
)
from charact.record.schema import MEMORY_CATEGORIES, PHASES
from charact.workload.registry import all_workloads, find_workload

BATCH, FEATURES, CLASSES = 64, 512, 10
WEIGHTS = 4 * (FEATURES * WIDTH + WIDTH * CLASSES)
INPUT = 4 * BATCH * FEATURES + 8 * BATCH  # features and int64 labels
# Deeper or wider forms of another workload here: minutes of the same code.
LEFT_OUT = {"resnet101", "resnet152", "resnet152v2", "vgg13", "vgg13_bn", "vgg16", "vgg16_bn", "vgg19", "vgg19_bn"}
CHOSEN_VARIANTS = {"transformer": "small", "transformer_lm": "small"}
Row = dict[str, Any]


def warm(case: Case, batches: Any = None) -> Loop:
    loop = Loop(case, batches)
    for _ in range(2):
        loop.iteration(lambda _: nullcontext())
    return loop


def measured(mode: str, **options: Any) -> tuple[dict[tuple[str, str], dict[str, float]], dict[str, Any], list[Row]]:
    loop = warm(small_case(mode, batch_size=BATCH, **options))
    rows, facts = memory_pass(loop)
    loop.close()
    moments: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    timeline: dict[float, float] = defaultdict(float)
    for row in rows:
        assert row["phase"] in PHASES or row["kind"] == "timeline"  # frees between phases have none
        assert row["method"] == "measured"
        if row["kind"] == "timeline":
            timeline[row["time_s"]] += row["bytes"]
        else:
            assert row["time_s"] is None
            assert row["moment"] is None
            moments[row["kind"], row["phase"]][row["category"]] = row["bytes"]
    assert min(timeline) == 0
    assert max(timeline.values()) == facts.peak_bytes  # thinned out, but not at the peak
    return moments, facts, rows


def test_training() -> None:
    moments, facts, _ = measured("train")
    for categories in moments.values():
        assert set(categories) == set(MEMORY_CATEGORIES) - {"unsharded_weights", "communication_buffers", "kv_cache"}
        assert categories["weights"] == categories["optimizer_state"] == WEIGHTS
        assert all(held >= 0 for held in categories.values())
    assert moments["phase_peak", "data"]["input"] in (0, INPUT)
    forward = moments["phase_peak", "forward"]
    # Most is held while ReLU runs: its input, and its output, which alone is kept for the backward pass.
    assert forward["activations"] == 4 * BATCH * 2 * WIDTH
    assert forward["input"] == INPUT
    assert forward["gradients"] == 0
    assert moments["phase_peak", "update"]["gradients"] == WEIGHTS
    assert moments["phase_peak", "update"]["activations"] == 4 * BATCH * CLASSES + 4  # the outputs and the loss
    (peak,) = (sum(categories.values()) for (kind, _), categories in moments.items() if kind == "peak")
    assert peak == facts.peak_bytes == max(sum(categories.values()) for categories in moments.values())
    assert facts.allocator_peak_bytes is None
    assert facts.process_peak_bytes > peak


def test_inference_keeps_nothing_for_a_backward_pass() -> None:
    moments, _, _ = measured("infer")
    assert {phase for _, phase in moments} == {"data", "forward"}
    peak = next(categories for (kind, _), categories in moments.items() if kind == "peak")
    assert peak["weights"] == WEIGHTS
    assert peak["gradients"] == peak["optimizer_state"] == peak["unknown"] == 0
    assert peak["activations"] == 4 * BATCH * 2 * WIDTH  # a layer's input and output


def test_a_batch_from_a_worker_is_counted_though_it_comes_in_shared_memory() -> None:
    moments, _, _ = measured("train", num_workers=1)
    assert moments["phase_peak", "forward"]["input"] == pytest.approx(INPUT, rel=0.05)


def test_peaks_name_the_layer_and_operator_at_work() -> None:
    _, _, rows = measured("train")
    named = {row["phase"]: (row["layer"], row["operator"]) for row in rows if row["kind"] == "phase_peak"}
    assert named["forward"] == ("1", "aten::relu")
    # The gradient of the first layer's weights comes last, beside that of the hidden values.
    assert named["backward"][0] in ("0", "1")
    assert named["backward"][1].startswith("aten::")
    peak = next(row for row in rows if row["kind"] == "peak")
    assert (peak["layer"], peak["operator"]) == named[peak["phase"]]


def test_the_timeline_numbers_its_moments() -> None:
    _, _, rows = measured("train")
    times = {row["moment"]: row["time_s"] for row in rows if row["kind"] == "timeline"}
    assert list(times) == list(range(len(times)))
    assert list(times.values()) == sorted(times.values())


@dataclass(kw_only=True)
class SparseGradients(TwoLayers):
    """An embedding whose gradient holds the rows that were looked up alone, before a lazy layer."""

    def dataset(self, input_size: int, request: DataRequest) -> Any:
        torch.manual_seed(request.seed)
        return TensorDataset(torch.randint(0, 100, (256, 4)), torch.randint(0, 10, (256,)))

    def model(self, dataset: Any) -> nn.Module:
        return nn.Sequential(nn.Embedding(100, 8, sparse=True), nn.Flatten(), nn.LazyLinear(10, bias=False))

    def optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(model.parameters(), lr=0.01)]


def test_a_sparse_gradient_is_its_values() -> None:
    loop = Loop(small_case("train", batch_size=16, workload=SparseGradients()))
    loop.iteration(lambda _: nullcontext())
    rows, _ = memory_pass(loop)
    loop.close()
    (held,) = (row["bytes"] for row in rows if (row["kind"], row["phase"], row["category"]) == (
        "phase_peak", "update", "gradients"))
    # 8 values of each of 64 rows that were looked up, whose places are the batch's own; and those of a layer.
    assert held == 4 * 64 * 8 + 4 * 4 * 8 * 10


def test_gradients_of_several_batches_are_summed_in_place() -> None:
    once, _, _ = measured("train")
    thrice, _, _ = measured("train", accumulate=3)
    gradients = [moments["phase_peak", "update"]["gradients"] for moments in (once, thrice)]
    assert gradients == [WEIGHTS, WEIGHTS]
    # The batch, outputs and loss before are let go only when those after them are there.
    assert thrice["phase_peak", "forward"]["gradients"] == WEIGHTS
    assert thrice["phase_peak", "data"]["input"] == 2 * INPUT


def test_a_hidden_state_that_is_carried_along_is_held_until_the_backward_pass_lets_go() -> None:
    case = Case(find_workload("rnn_lm").prepare(), 2, 8, "train", "fp32", torch.device("cpu"), DataRequest())
    loop = warm(case)
    probe = probe_for(loop)
    run_under(probe, loop)
    _, curve = probe.read()
    state = 2 * 2 * 4 * 8 * 200  # of 2 layers, output and cell, 8 streams of 200
    assert curve.snapshots[0].categories["activations"] == state
    after = curve.snapshots[-1].categories
    assert after["activations"] == state
    assert after["gradients"] == after["temporary"] == after["unknown"] == 0


def check_composition(name: str, mode: str) -> None:
    workload = all_workloads()[name].prepare(CHOSEN_VARIANTS.get(name))
    case = Case(workload, workload.smallest_input_size, 2, mode, "fp32", torch.device("cpu"), DataRequest())
    batches = Batches(case, case.dataset(), shuffle=case.training, whole=True).first(0)
    loop = warm(case, batches)
    light = probe_for(loop, operators=False)
    run_under(light, loop)
    rows, facts = memory_pass(loop)
    held = {row["category"]: row["bytes"] for row in rows if row["kind"] == "peak"}
    assert sum(held.values()) == facts.peak_bytes
    assert held["unknown"] <= 0.02 * facts.peak_bytes
    assert all(num_bytes >= 0 for num_bytes in held.values())
    # Without operators every phase's peak is the same.
    peaks: dict[str, float] = defaultdict(float)
    for row in rows:
        if row["kind"] == "phase_peak":
            peaks[row["phase"]] += row["bytes"]
    _, curve = light.read()
    assert {phase: snapshot.total_bytes for phase, snapshot in curve.phase_peaks().items()} == peaks


@pytest.mark.parametrize("mode", ["train", "infer"])
@pytest.mark.parametrize("name", ["mlp", "rnn_lm", "seq2seq"])
def test_the_composition_sums_to_the_peak_and_little_of_it_is_unknown(name: str, mode: str) -> None:
    check_composition(name, mode)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["train", "infer"])
@pytest.mark.parametrize("name", sorted(set(all_workloads()) - LEFT_OUT - {"mlp", "rnn_lm", "seq2seq"}))
def test_the_composition_of_every_workload(name: str, mode: str) -> None:
    check_composition(name, mode)


@pytest.mark.parametrize(("device", "names"), [
    (torch.device("cuda", 1), {"cuda:1"}), (torch.device("cuda"), {"cuda:0", "cuda:1"}),
    (torch.device("cpu"), {"cpu"})])
def test_blocks_of_other_devices_do_not_count(device: torch.device, names: set[str]) -> None:
    owners = BlockOwners(device, [], [])
    owners.begin()
    tree = EventTree(phases=[(0, 100, "forward")], allocations=[
        Allocation(10 * (number + 1), 512 * number, 2**number, name, 50)
        for number, name in enumerate(("cpu", "cuda:0", "cuda:1"))])
    expected = sum(one.num_bytes for one in tree.allocations if one.device in names)
    assert curve_of(tree, owners, {}).snapshots[-1].total_bytes == expected


CUDA = torch.device("cuda", 0)
MIB = 2**20


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """64 MiB of workspaces, and 1 MiB of which nothing is known."""
    state = SimpleNamespace(workspaces=64 * MIB, others=MIB, num_synchronizations=0)

    def release() -> None:
        assert state.num_synchronizations > 0, "kernels may still use the workspaces"
        state.workspaces = 0

    def synchronize(device: torch.device) -> None:
        state.num_synchronizations += 1

    class Graph:
        pass

    state.graph_class = Graph
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: state.workspaces + state.others)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", release, raising=False)
    return state


def test_workspaces_are_not_unknown(allocator: SimpleNamespace) -> None:
    loop = Loop(small_case("train"))
    probe = MemoryProbe(CUDA, [loop.model], loop.optimizers)
    probe.begin()
    marked_iteration(probe, loop)
    probe.stop()
    loop.close()
    _, curve = probe.read()
    assert curve.snapshots[0].categories["workspaces"] == 64 * MIB
    assert curve.snapshots[0].categories["unknown"] == MIB


def test_a_graph_keeps_its_workspaces(allocator: SimpleNamespace) -> None:
    graph = allocator.graph_class()
    assert released_workspaces(CUDA) == 0
    assert allocator.workspaces == 64 * MIB
    del graph
    assert released_workspaces(CUDA) == 64 * MIB


def test_a_torch_without_the_function_releases_none(
        allocator: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_cuda_clearCublasWorkspaces")
    assert released_workspaces(CUDA) == 0
