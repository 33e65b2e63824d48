"""cuBLAS's workspaces in the composition of memory, on a stub of CUDA's allocator around an iteration on the CPU."""

from types import SimpleNamespace

import pytest
import torch
from support.small import small_case

from charact.execution.loop import Loop
from charact.measure.passes.memory_pass import MemoryProbe, marked_iteration, released_workspaces

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
