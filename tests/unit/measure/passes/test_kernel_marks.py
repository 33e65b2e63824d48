"""Layers of compiled kernels, against layers of known cost, graph breaks, fused layers and warm caches."""

import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.profiler import ProfilerActivity, profile, record_function

from charact.core.trace_marks import KERNEL_PREFIX
from charact.execution.compilations import OPTIONS
from charact.measure.passes.event_tree import read_event_tree
from charact.measure.passes.kernel_marks import kernel_marks, layer_of
from charact.measure.passes.marks import layer_marks, phase_mark

needs_compiler = [
    pytest.mark.skipif(not shutil.which(os.environ.get("CXX", "g++")), reason="there is no C++ compiler"),
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),  # PyTorch's compiler imports what it deprecates
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),  # its compiler looks for one
]
_Times = dict[tuple[str | None, str, str | None], int]
"""Self time in ns by phase, operator type and layer."""


@pytest.fixture
def compiler() -> Iterator[None]:
    """Leave nothing compiled to other tests."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Chain(nn.Module):
    """A chain of elementwise operations."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def forward(self, inputs: Tensor) -> Tensor:
        for _ in range(self.length):
            inputs = torch.sin(inputs)
        return inputs


class Products(nn.Module):
    """A large and a small product of matrices, two of the small one if the graph breaks."""

    def __init__(self, *, breaks: bool = False) -> None:
        super().__init__()
        self.wide, self.narrow, self.breaks = nn.Linear(1024, 1024), nn.Linear(64, 64), breaks

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = self.narrow(self.wide(inputs)[:, :64])
        if self.breaks:
            torch._dynamo.graph_break()
            outputs = self.narrow(outputs)
        return outputs


class Block(nn.Module):
    """A layer whose graph breaks after its product, so that it is compiled without the layer that contains it."""

    def __init__(self) -> None:
        super().__init__()
        self.product = nn.Linear(64, 64)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = self.product(inputs)
        torch._dynamo.graph_break()
        return outputs


def times_of(call: Callable[[Tensor], Tensor], inputs: Tensor) -> _Times:
    """Return the shortest times of five iterations, since other programs may take the core."""
    for _ in range(2):
        call(inputs).sum().backward()
    shortest: _Times = {}
    for _ in range(5):
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
            with phase_mark("forward"):
                outputs = call(inputs).sum()
            with phase_mark("backward"):
                outputs.backward()
        times: _Times = defaultdict(int)
        for operator in read_event_tree(profiler).operators:
            times[operator.phase, operator.operator_type, operator.layer] += operator.self_ns
        shortest = {place: min(time_ns, shortest.get(place, time_ns)) for place, time_ns in times.items()}
    return shortest


def compiled_times(model: nn.Module, inputs: Tensor) -> _Times:
    torch.compiler.reset()
    with kernel_marks(model) as are_marked:
        assert are_marked
        return times_of(torch.compile(model, options=OPTIONS), inputs)


def layers_of(times: _Times, phase: str, kind: str) -> set[str | None]:
    return {layer for of_phase, of_kind, layer in times if (of_phase, of_kind) == (phase, kind)}


@pytest.mark.usefixtures("compiler")
class TestProducts:
    pytestmark = needs_compiler

    @pytest.mark.clock
    def test_each_product_has_its_layer_in_both_phases_and_times_agree_with_eager(self) -> None:
        model, inputs = Products(), torch.randn(256, 1024)
        compiled = compiled_times(model, inputs)
        with layer_marks(model):
            eager = times_of(model, inputs)
        for phase in ("forward", "backward"):
            assert layers_of(compiled, phase, "GEMM") == {"wide", "narrow"}
            for times in (compiled, eager):  # 256 times the work
                assert times[phase, "GEMM", "wide"] > 8 * times[phase, "GEMM", "narrow"]

    def test_code_after_a_graph_break_has_layers_too(self) -> None:
        model, inputs = Products(breaks=True), torch.randn(8, 1024)
        compiled = compiled_times(model, inputs)
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 2
        assert layers_of(compiled, "forward", "GEMM") == {"wide", "narrow"}
        assert layers_of(compiled, "backward", "GEMM") == {"wide", "narrow"}

    def test_equal_graphs_of_different_layers_are_not_confused_and_warm_caches_change_nothing(
            self, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
        inputs = torch.randn(8, 64)
        torch.compile(nn.Sequential(Block(), Block()))(inputs).sum().backward()  # fills the caches, without marks
        for _ in range(2):
            times = compiled_times(nn.Sequential(Block(), Block()), inputs)
            for phase in ("forward", "backward"):
                assert layers_of(times, phase, "GEMM") == {"0.product", "1.product"}

    def test_nothing_is_marked_afterwards(self) -> None:
        from torch._inductor import config

        model, inputs = nn.Linear(8, 8), torch.randn(8, 8)
        compiled_times(model, inputs)
        assert config.fx_graph_cache
        torch.compiler.reset()
        assert layers_of(times_of(torch.compile(model, options=OPTIONS), inputs), "forward", "GEMM") == {None}


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
class TestGeneratedKernels:
    pytestmark = needs_compiler

    @pytest.mark.clock
    def test_their_times_follow_the_work_of_their_layers(self) -> None:
        # Without a bias, whose gradient would be summed in the kernel of the long chain's backward.
        model, inputs = nn.Sequential(Chain(48), nn.Linear(64, 64, bias=False), Chain(3)), torch.randn(20_000, 64)
        inputs.requires_grad_()
        compiled = compiled_times(model, inputs)
        with layer_marks(model):
            eager = times_of(model, inputs)
        for phase in ("forward", "backward"):
            for times, kind in ((compiled, "compiled"), (eager, "elementwise")):
                assert times[phase, kind, "0"] > 4 * times[phase, kind, "2"] > 0

    def test_backward_convolutions_belong_to_their_layers_after_fused_kernels(self) -> None:
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8))
        times = compiled_times(model, torch.randn(2, 3, 16, 16))
        for phase in ("forward", "backward"):
            assert layers_of(times, phase, "convolution") == {"0", "3"}

    def test_a_kernel_of_two_layers_belongs_to_the_one_that_contains_both(self) -> None:
        model = nn.Sequential(nn.Sequential(Chain(2), Chain(3)), nn.Linear(64, 64))
        times = compiled_times(model, torch.randn(8, 64))
        assert layers_of(times, "forward", "compiled") == {"0", None}  # None: the call of compiled code


Stack = dict[str, tuple[str, type]]


def graph_of(**stacks: dict[str, Any]) -> fx.Graph:
    """Return a graph that has a node of each name with this metadata."""
    graph = fx.Graph()
    for name, meta in stacks.items():
        graph.create_node("call_function", torch.sin, (), name=name).meta.update(meta)
    return graph


def stack(*modules: tuple[str, str]) -> Stack:
    return {key: (path, nn.Module) for key, path in modules}


NAMES = {"1": "layers", "2": "layers.0", "3": "layers.0.norm", "4": "layers.0.mlp", "5": "layers.01", "6": "head"}
GRAPH = graph_of(
    norm={"nn_module_stack": stack(("2", "L['self'].layers.0"), ("3", "L['self'].layers.0.norm"))},
    mlp={"nn_module_stack": stack(("2", "L['self'].layers.0"), ("4@1", "L['self'].layers.0.mlp"))},
    other={"nn_module_stack": stack(("5", "L['self'].layers.01"))},
    head={"fwd_nn_module_stack": stack(("6", "L['self'].head")), "partitioner_tag": "is_backward"},
    gradient_sum={"partitioner_tag": "is_backward"},
    own={},
    own_backward={"fwd_nn_module_stack": None, "partitioner_tag": "is_backward"},
    unknown={"nn_module_stack": stack(("7", "G['function'].inner"))},
)
GRAPH.create_node("call_function", torch.ops.aten.copy_.default, (), name="updated_buffer")


@pytest.mark.parametrize(("origins", "layer"), [
    (["norm"], "layers.0.norm"),
    (["mlp"], "layers.0.mlp"),  # its second call
    (["norm", "mlp"], "layers.0"),
    (["norm", "other"], "layers"),  # layers.0 does not contain layers.01
    (["norm", "head"], None),
    (["head", "gradient_sum"], "head"),
    (["norm", "updated_buffer"], "layers.0.norm"),
    (["head", "unknown"], "head"),
    (["head", "own"], None),
    (["head", "own_backward"], None),
    (["gradient_sum"], None),
    (["unknown"], None),
    ([], None),
])
def test_a_kernel_belongs_to_the_innermost_layer_that_contains_its_origins(
        origins: list[str], layer: str | None) -> None:
    assert layer_of(GRAPH, origins, NAMES) == layer


def test_operations_of_a_layer_that_is_compiled_apart_belong_to_it() -> None:
    graph = graph_of(norm={"nn_module_stack": stack(("3", "L['self'].norm"))}, own={})
    assert layer_of(graph, ["own"], NAMES) == "layers.0"
    assert layer_of(graph, ["own", "norm"], NAMES) == "layers.0"


def test_a_mark_is_for_the_next_operator_that_is_no_view() -> None:
    matrix = torch.ones(4, 4)
    with profile(activities=[ProfilerActivity.CPU]) as profiler, phase_mark("forward"), record_function("code"):
        with record_function(f"{KERNEL_PREFIX}fc.0"):
            pass
        torch.mm(matrix.t(), matrix)
        torch.mm(matrix, matrix)
    layers = [(operator.name, operator.layer) for operator in read_event_tree(profiler).operators
              if operator.name in ("aten::t", "aten::mm")]
    assert layers == [("aten::t", "fc.0"), ("aten::mm", "fc.0"), ("aten::mm", None)]
