"""Image workloads beyond ResNet and VGG: published counts and settings, FLOP of training, and whether they learn."""

from typing import Any

import numpy as np
import pytest
import torch
from support.published import build, first_batch, make_case, unmarked
from torch import Tensor
from torch.nn import functional

from charact.datasets._common.request import DataRequest
from charact.execution.case import Case
from charact.execution.loop import Loop
from charact.measure.passes.flops import flop_pass
from charact.workload.registry import find_workload
from charact.workloads.images.googlenet import GoogLeNetOutputs

CASES = [
    ("mlp", "mnist"), ("convolve2d", "vo"), ("model_b", "vo"), ("model_b", "rahimzadeh"), ("model_a", "deitsch"),
    ("model_a", "vo"), ("resnet152v2", "imagenet"), ("resnet50v2", "imagenet"), ("xception", "imagenet"),
    ("googlenet", "torchvision"), ("googlenet", "paper"),
]


@pytest.mark.parametrize(("variant", "published"), [("torchvision", 6_624_904), ("paper", 7_005_832)])
def test_googlenet_without_its_auxiliary_classifiers_has_the_published_parameters(
    variant: str, published: int
) -> None:
    _, model = build("googlenet", variant)
    assert sum(each.numel() for name, each in model.named_parameters() if not name.startswith("aux")) == published


def test_model_a_trains_the_published_part_of_its_parameters() -> None:
    workload, model = build("model_a")
    (optimizer,) = workload.optimizers(model)
    assert sum(each.numel() for each in optimizer.param_groups[0]["params"]) == 10_215_306
    assert sum(each.numel() for each in model.base.parameters()) == 20_024_384


@pytest.mark.slow_variants
@pytest.mark.parametrize(("name", "variant"), [
    pytest.param(*case, marks=pytest.mark.slow if {*case} & {"model_b", "resnet152v2", "xception", "paper"} else ())
    for case in CASES])
def test_flop_are_counted_in_every_phase_of_training(name: str, variant: str) -> None:
    smallest = find_workload(name).prepare(variant).smallest_input_size
    case = make_case(name, variant, "train", batch_size=2, input_size=smallest)
    rows, facts = flop_pass(case, first_batch(case))
    flop = {phase: sum(row["flop"] or 0 for row in rows if row["phase"] == phase)
            for phase in ("forward", "loss", "backward", "update")}
    assert facts.uncounted == []
    assert {row["phase"] for row in rows} == flop.keys()
    assert not [row["operator"] for row in rows if row["operator_type"] == "other"]
    # Gradients of the weights and of the inputs each cost what the forward pass does; the first layer's input needs
    # none, and a frozen base needs none of either.
    most_is_frozen = (name, variant) == ("model_a", "vo")
    lowest, highest = (0, 0.1) if most_is_frozen else (1, 2)
    assert lowest < flop["backward"] / flop["forward"] <= highest


@pytest.mark.parametrize(("name", "variant", "input_size", "batch_size", "num_classes"), [
    ("googlenet", None, 224, 8, 1000), ("xception", None, 299, 8, 1000), ("resnet50v2", None, 224, 8, 1000),
    ("model_a", None, 32, 64, 10), ("model_a", "deitsch", 300, 16, 4),
    ("model_b", None, 32, 64, 10), ("model_b", "rahimzadeh", 300, 20, 3),
    ("convolve2d", None, 32, 64, 10), ("mlp", None, 28, 128, 10),
])
def test_defaults_are_the_published_ones(
    name: str, variant: str | None, input_size: int, batch_size: int, num_classes: int
) -> None:
    workload: Any = find_workload(name).prepare(variant)
    assert (workload.default_input_size, workload.default_batch_size) == (input_size, batch_size)
    assert workload.dataset(input_size, DataRequest()).num_classes == num_classes


@pytest.mark.parametrize(("name", "variant", "optimizer_type", "settings"), [
    ("googlenet", None, torch.optim.SGD, {"momentum": 0.9}),
    ("model_a", None, torch.optim.Adam, {"lr": 1e-3, "eps": 1e-7, "betas": (0.9, 0.999)}),
    ("model_a", "deitsch", torch.optim.SGD, {"lr": 5e-4, "momentum": 0.9, "weight_decay": 0}),
    ("model_b", None, torch.optim.Adam, {"lr": 1e-3, "eps": 1e-7}),
    ("model_b", "rahimzadeh", torch.optim.NAdam, {"lr": 1e-4, "eps": 1e-7}),
    ("convolve2d", None, torch.optim.Adam, {"lr": 1e-3, "eps": 1e-7}),
    ("mlp", None, torch.optim.RMSprop, {"lr": 1e-3, "eps": 1e-7, "alpha": 0.9}),
])
def test_optimizers_have_the_published_settings(
    name: str, variant: str | None, optimizer_type: type, settings: dict[str, Any]
) -> None:
    workload, model = build(name, variant)
    (optimizer,) = workload.optimizers(model)
    assert type(optimizer) is optimizer_type
    assert optimizer.defaults.items() >= settings.items()


def run_iterations(case: Case, num_iterations: int) -> list[float]:
    """Losses of iterations over the same batch, by the loop that everything is measured in."""
    batch = first_batch(case)
    loop = Loop(case, batches=iter([batch] * num_iterations))
    losses: list[float] = []
    of_outputs = loop.workload.loss

    def noted(outputs: Any, batch: Any) -> Tensor:
        loss = of_outputs(outputs, batch)
        losses.append(loss.item())
        return loss

    loop.workload.loss = noted  # type: ignore[method-assign]
    for _ in range(num_iterations):
        loop.iteration(unmarked)
    return losses


@pytest.mark.slow_variants
@pytest.mark.parametrize(("name", "variant", "input_size"), [
    ("convolve2d", "vo", 16), ("googlenet", "torchvision", 32), ("mlp", "mnist", 28), ("xception", "imagenet", 32),
    ("resnet50v2", "imagenet", 16), ("model_a", "vo", 32), ("model_a", "deitsch", 32), ("model_b", "vo", 32),
    ("model_b", "rahimzadeh", 32),
])
def test_training_lowers_the_loss_of_a_batch(name: str, variant: str, input_size: int) -> None:
    losses = run_iterations(make_case(name, variant, "train", batch_size=4, input_size=input_size), 8)
    assert np.isfinite(losses).all()
    assert min(losses[1:]) < losses[0]


def test_googlenet_adds_three_tenths_of_each_auxiliary_loss() -> None:
    labels = torch.tensor([1, 0])
    logits = [torch.tensor([[0.0, weight], [0.0, weight]]) for weight in (1.0, 2.0, 3.0)]
    alone = [functional.cross_entropy(each, labels) for each in logits]
    workload = find_workload("googlenet").prepare()
    total = workload.loss(GoogLeNetOutputs(*logits), [None, labels])
    torch.testing.assert_close(total, alone[0] + 0.3 * alone[1] + 0.3 * alone[2])
    torch.testing.assert_close(workload.loss(logits[0], [None, labels]), alone[0])
