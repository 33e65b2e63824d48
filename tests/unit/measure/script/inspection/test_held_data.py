"""Tensors that a program holds: where they are found, what names them, and which types would hold them."""

from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.data import DataLoader, TensorDataset

from charact.measure.script.inspection.held_data import held_data, narrower_type, rows_overlap, tensor_census

MIB = 2**20


def found(prefix: str) -> dict[str, Any]:
    return next((each for each in held_data() if each["variable"].startswith(prefix)), {})


def test_a_tensor_of_bytes_in_floating_point() -> None:
    frames = torch.randint(0, 256, (5, MIB)).float()
    held = found("frames")
    assert (held["variable"], held["shape"], held["dtype"], held["bytes"]) == ("frames", [5, MIB], "float32", 20 * MIB)
    assert (held["narrower"], held["scale"]) == ("uint8", 1)
    assert held["text"] == "frames = torch.randint(0, 256, (5, MIB)).float()"
    del frames


class Memory:
    """A replay buffer."""

    def __init__(self) -> None:
        self.pictures = torch.randint(0, 256, (6, MIB)) / 255


def test_attributes_and_their_lines_are_named() -> None:
    memory = Memory()
    held = found("memory")
    assert held.keys() == {"variable", "shape", "dtype", "num_tensors", "bytes", "narrower", "scale", "overlaps",
                           "file", "line", "text"}
    assert (held["variable"], held["narrower"], held["scale"]) == ("memory.pictures", "uint8", 255)
    assert held["text"] == "self.pictures = torch.randint(0, 256, (6, MIB)) / 255"
    assert memory.pictures.dtype == torch.float32


def test_tensors_of_a_loader_s_data_set() -> None:
    loader = DataLoader(TensorDataset(torch.randn(7, MIB), torch.arange(7)))
    held = found("loader")
    assert (held["variable"], held["narrower"]) == ("loader.dataset.tensors[0]", None)
    assert held["text"] == "loader = DataLoader(TensorDataset(torch.randn(7, MIB), torch.arange(7)))"
    assert len(loader) == 7


def test_many_arrays_of_a_list_count_together() -> None:
    sequences = deque(np.full(MIB // 8, number) + np.arange(MIB // 8) % 1000 for number in range(90))
    held = found("sequences")
    assert (held["num_tensors"], held["bytes"], held["dtype"], held["narrower"]) == (90, 90 * MIB, "int64", "int16")
    assert len(sequences) == 90


class Subject:
    """A scan and its labels."""

    def __init__(self) -> None:
        self.scan = np.random.default_rng(0).standard_normal((1, MIB // 4), dtype=np.float32)
        self.labels = np.tile(np.arange(5, dtype=np.float32), MIB // 10)


def test_arrays_of_many_objects_count_together() -> None:
    subjects = [Subject() for _ in range(12)]
    pairs = [(torch.full((MIB // 4,), 7.0), number) for number in range(20)]
    held = found("subjects[...].labels")
    assert (held["num_tensors"], held["dtype"], held["narrower"]) == (12, "float32", "uint8")
    assert held["text"].startswith("self.labels = np.tile(")
    assert found("pairs[...][0]")["bytes"] == 20 * MIB
    assert len(subjects) < len(pairs)


def test_containers_that_load_their_items_are_left_alone() -> None:
    class Lazy(dict[str, Any]):
        def items(self) -> Any:
            raise AssertionError

    class LazyList(list[Any]):
        def __iter__(self) -> Any:
            raise AssertionError

    lazy, numbers = Lazy(frames=torch.randn(8, MIB)), LazyList([torch.randn(8, MIB)])
    assert found("lazy")["variable"] == "lazy['frames']"  # what it holds already
    assert not found("numbers")
    assert len(lazy) == len(numbers)


def test_weights_and_small_tensors_are_left_out() -> None:
    model, small = nn.Linear(3000, 3000), torch.ones(MIB)
    assert not any(each["variable"].startswith(("model", "small")) for each in held_data())
    assert model.in_features < len(small)


@pytest.mark.parametrize(("values", "expected"), [
    (torch.tensor([0.0, 255.0]), (torch.uint8, 1)),
    (torch.tensor([-1.0, 127.0]), (torch.int8, 1)),
    (torch.tensor([0.0, 256.0]), (torch.int16, 1)),
    (torch.tensor([0, 2**31 - 1]), (torch.int32, 1)),
    (torch.tensor([0, 2**31]), (None, 1)),
    (torch.arange(256) / 255, (torch.uint8, 255)),
    (torch.tensor([0.1, 0.5]), (None, 1)),
    (torch.tensor([0.1, 0.5]).double(), (torch.float32, 1)),
    (torch.tensor([0.1, 0.5], dtype=torch.float64), (None, 1)),
    (torch.tensor([1.0, float("nan")]), (None, 1)),
    (torch.tensor([1.0, float("inf")]), (None, 1)),
    (torch.zeros(9), (None, 1)),
    (torch.zeros(0), (None, 1)),
    (torch.tensor([3, 4], dtype=torch.uint8), (None, 1)),
    (torch.ones(4, 4).t()[:2], (None, 1)),
])
def test_narrowest_type(values: torch.Tensor, expected: tuple[torch.dtype | None, int]) -> None:
    assert narrower_type(values) == expected


@pytest.mark.parametrize(("tensor", "expected"), [
    (torch.randn(60).unfold(0, 20, 1), True),
    (torch.stack([torch.arange(60.0)[first:first + 20] for first in range(30)]), True),
    (torch.randn(60, 3).unfold(0, 20, 1).transpose(1, 2), True),
    (torch.randn(60).unfold(0, 20, 2), False),
    (torch.randn(40, 20), False),
    (torch.ones(40, 20), False),
    (torch.randn(40), False),
    (torch.randn(4, 20), False),
])
def test_rows_of_overlapping_windows(tensor: torch.Tensor, expected: bool) -> None:
    assert rows_overlap(tensor) is expected


def trained(num: int = 12) -> tuple[nn.Module, torch.optim.Optimizer, list[Any]]:
    model = nn.Sequential(*(nn.Linear(30, 30) for _ in range(num)))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 30)).sum().backward()
    optimizer.step()
    return model, optimizer, []


def test_tensors_in_a_list_name_it_and_the_line_that_adds_to_it() -> None:
    model, optimizer, outputs = trained(1)
    for _ in range(20):
        outputs.append(model(torch.randn(61, 30)))
    held = next(each for each in tensor_census([model], [optimizer])["held_tensors"]
                if each["shape"] == [61, 30] and each["has_graph"])  # the graphs also hold the inputs
    assert (held["num_tensors"], held["bytes"]) == (20, 20 * 61 * 30 * 4)
    assert "Addmm" in held["function"]
    assert held["variable"] == "outputs"
    assert held["text"] == "outputs.append(model(torch.randn(61, 30)))"


def test_views_of_one_storage_count_once() -> None:
    rows = list(torch.zeros(40, 51_700))
    held = next(each for each in tensor_census([], [])["held_tensors"] if each["shape"] == [51_700])
    assert held["bytes"] == 40 * 51_700 * 4
    assert len(rows) == 40


@pytest.mark.filterwarnings("error")
def test_tensors_without_memory_are_left_out() -> None:
    """Those with which `torch.compile` traces; wrappers and subclasses may raise errors."""
    class Broken(torch.Tensor):
        def untyped_storage(self) -> Any:
            raise ValueError("broken")

    with FakeTensorMode():
        traced = [torch.ones(53, 71) for _ in range(20)]
    wrapped = [torch._to_functional_tensor(torch.ones(53, 72)) for _ in range(20)]
    broken = [torch.ones(53, 73).as_subclass(Broken) for _ in range(20)]
    held = [torch.ones(53, 74) for _ in range(20)]
    shapes = [each["shape"] for each in tensor_census([], [])["held_tensors"]]
    assert [53, 74] in shapes
    assert [53, 71] not in shapes
    assert held_data() == []
    assert len(traced) == len(wrapped) == len(broken) == len(held)


def test_a_sum_of_losses_has_a_graph_that_grows() -> None:
    """That of one iteration, however large, is as old as its share of all nodes."""
    model, optimizer, _ = trained(1)
    total: Any = 0
    sizes, ages = [], []
    for number in range(1, 61):
        total = total + model(torch.randn(4, 30)).sum()
        if number in (30, 60):
            graphs = tensor_census([model], [optimizer])["held_graphs"]
            sizes.append(next(each["num_nodes"] for each in graphs if each["variable"] == "total"))
        if number == 60:
            deep = torch.ones(3, requires_grad=True)
            for _ in range(sizes[-1]):
                deep = deep * 1.0
            graphs = tensor_census([model], [optimizer])["held_graphs"]
            ages = [next(each["age_frac"] for each in graphs if each["variable"] == name) for name in ("total", "deep")]
    assert 0 < ages[1] < 0.8 * ages[0] <= 0.8
    assert sizes[1] > 1.8 * sizes[0] > 100
    assert next(each for each in graphs if each["variable"] == "total")["text"].startswith("total = total + ")


@pytest.mark.parametrize(("num_elements", "num_nodes", "is_listed"), [
    (1 << 20, 60, True), ((1 << 20) + 1, 60, False), (3, 50, True), (3, 49, False)])
def test_large_graphs_of_small_tensors_are_listed(num_elements: int, num_nodes: int, is_listed: bool) -> None:
    result = torch.ones(num_elements, requires_grad=True)
    for _ in range(num_nodes - 1):  # and the node that accumulates the gradient
        result = result * 1.0
    graphs = [each for each in tensor_census([], [])["held_graphs"] if each["variable"] == "result"]
    assert [each["num_nodes"] for each in graphs] == [num_nodes] * is_listed


def test_few_tensors_small_graphs_and_what_is_known_are_left_out() -> None:
    model, optimizer, _ = trained()
    few = [torch.zeros(7, 991) for _ in range(7)]
    loss = (torch.ones(3, requires_grad=True) * 2).sum()
    facts = tensor_census([model], [optimizer])
    shapes = [held["shape"] for held in facts["held_tensors"]]
    assert [7, 991] not in shapes
    assert [30, 30] not in shapes  # parameters, gradients and optimizer state
    assert all(held["variable"] != "loss" for held in facts["held_graphs"])
    assert len(few) + loss.dim() == 7
