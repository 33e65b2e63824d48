"""What holds tensors: variables and lines are named, and what belongs to models and optimizers is left out."""

from typing import Any

import torch
from torch import nn

from charact.measure.script.inspection.held_data import tensor_census


def trained(num: int = 12) -> tuple[nn.Module, torch.optim.Optimizer, list[Any]]:
    model = nn.Sequential(*(nn.Linear(30, 30) for _ in range(num)))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 30)).sum().backward()
    optimizer.step()
    return model, optimizer, []


def test_parameters_gradients_and_optimizer_state_are_no_holders() -> None:
    model, optimizer, _ = trained()
    shapes = [held["shape"] for held in tensor_census([model], [optimizer])["held_tensors"]]
    assert [30, 30] not in shapes


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


def test_a_sum_of_losses_has_a_graph_that_grows() -> None:
    model, optimizer, _ = trained(1)
    total: Any = 0
    sizes = []
    for number in range(1, 61):
        total = total + model(torch.randn(4, 30)).sum()
        if number in (30, 60):
            graphs = tensor_census([model], [optimizer])["held_graphs"]
            sizes.append(next(each["num_nodes"] for each in graphs if each["variable"] == "total"))
    assert sizes[1] > 1.8 * sizes[0] > 100
    assert next(each for each in graphs if each["variable"] == "total")["text"].startswith("total = total + ")


def test_few_tensors_and_small_graphs_are_left_out() -> None:
    few = [torch.zeros(7, 991) for _ in range(3)]
    loss = (torch.ones(3, requires_grad=True) * 2).sum()
    facts = tensor_census([], [])
    assert [7, 991] not in [held["shape"] for held in facts["held_tensors"]]
    assert all(held["variable"] != "loss" for held in facts["held_graphs"])
    assert len(few) + loss.dim() == 3
