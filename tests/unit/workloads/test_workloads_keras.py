"""Workloads that come from Keras: its paddings and settings, and what models A and B add to their loss."""

from typing import Any

import numpy as np
import pytest
import torch
from support.published import build, first_batch, make_case, unmarked
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils.data import default_collate

from charact.core.errors import UserError
from charact.datasets._common.request import DataRequest
from charact.execution.loop import Loop
from charact.workload.registry import find_workload
from charact.workloads.images import resnet_v2, xception
from charact.workloads.images._keras import RegularizedDense, RegularizedOutputs
from charact.workloads.images.convolve2d import SameConv2d, convolve2d
from charact.workloads.images.xception import SameMaxPool2d


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


@pytest.mark.parametrize("height", range(1, 8))
@pytest.mark.parametrize("width", [4, 5])
def test_strided_layers_pad_as_keras_does(height: int, width: int) -> None:
    pads = (*same_padding(width, 3, 2), *same_padding(height, 3, 2))
    x = torch.randn(2, 3, height, width) - 5  # padding with zeros would show

    pooled = functional.max_pool2d(functional.pad(x, pads, value=-torch.inf), 3, 2)
    torch.testing.assert_close(SameMaxPool2d()(x), pooled, rtol=0, atol=0)

    layer = SameConv2d(3, 4)
    expected = functional.conv2d(functional.pad(x, pads), layer.weight, layer.bias, 2)
    torch.testing.assert_close(layer(x), expected)


def test_convolve2d_averages_the_pixels_inside_a_window() -> None:
    model: Any = convolve2d(input_size=32, num_classes=10)
    picture = torch.arange(9.0).reshape(1, 1, 3, 3)
    assert model.pool1(picture).flatten().tolist() == [2.0, 3.5, 6.5, 8.0]


@pytest.mark.parametrize(("name", "eps"), [("xception", 1e-3), ("resnet50v2", 1.001e-5), ("resnet152v2", 1.001e-5)])
def test_batch_normalization_has_kerass_settings(name: str, eps: float) -> None:
    _, model = build(name)
    settings = {(module.eps, module.momentum) for module in model.modules() if isinstance(module, nn.BatchNorm2d)}
    assert settings == {(eps, 0.01)}


def test_resnet_v2s_stem_pools_over_a_border_of_zeros() -> None:
    features = resnet_v2.ResNetV2Features((1, 1, 1, 1))
    nn.init.zeros_(features.conv1.weight)
    nn.init.constant_(features.conv1.bias, -1.0)  # type: ignore[arg-type]
    pooled: list[Tensor] = []
    features.pool1.register_forward_hook(lambda _layer, _inputs, outputs: pooled.append(outputs))
    features.eval()(torch.zeros(1, 3, 16, 16))
    assert pooled[0][0, 0].tolist() == [[0] * 4, [0, -1, -1, -1], [0, -1, -1, -1], [0, -1, -1, -1]]


def test_a_resnet_v2_block_is_its_shortcut_where_its_convolutions_are_zero() -> None:
    block = resnet_v2.PreactivatedBottleneck(8, 2, stride=2).eval()
    nn.init.zeros_(block.conv3.weight)
    nn.init.zeros_(block.conv3.bias)  # type: ignore[arg-type]
    x = torch.randn(1, 8, 5, 5)
    torch.testing.assert_close(block(x), x[:, :, ::2, ::2], rtol=0, atol=0)


def test_xceptions_shortcut_gets_the_input_as_it_came() -> None:
    block = xception.XceptionFeatures().block5.eval()
    x = -torch.rand(1, 728, 3, 3)
    # All negative: the block's first ReLU leaves nothing to convolve, and what is left is the shortcut.
    torch.testing.assert_close(block(x), x, rtol=0, atol=1e-6)


@pytest.mark.slow_variants
@pytest.mark.parametrize("size", [7, 22, 23, 32, 38, 39, 64, 70, 71, 299, 300])
def test_features_have_the_side_that_is_foretold(size: int) -> None:
    with FakeTensorMode():
        picture = torch.empty(1, 3, size, size)
        assert xception.XceptionFeatures().eval()(picture).shape[-1] == xception.features_side(size)
        assert resnet_v2.ResNetV2Features((1, 1, 1, 1)).eval()(picture).shape[-1] == resnet_v2.features_side(size)


# --- Models A and B


def test_the_penalty_is_that_of_the_regularizers() -> None:
    layer = RegularizedDense(5, 3)
    nn.init.normal_(layer.linear.bias)
    outputs = layer(torch.randn(4, 5))
    weight, bias = (tensor.detach().numpy().astype(float) for tensor in (layer.linear.weight, layer.linear.bias))
    squares = (outputs.detach().numpy().astype(float) ** 2).sum(1)
    expected = 1e-5 * abs(weight).sum() + 1e-4 * (weight**2).sum() + 1e-4 * (bias**2).sum() + 1e-5 * squares.mean()
    assert layer.penalty(outputs).item() == pytest.approx(expected, rel=1e-5)


def test_the_penalty_is_part_of_the_loss_in_training_only() -> None:
    workload = find_workload("model_a").prepare()
    dataset: Any = workload.dataset(32, DataRequest())
    batch = default_collate([dataset[0], dataset[1]])
    model = workload.model(dataset)
    outputs = workload.forward(model, batch)
    assert isinstance(outputs, RegularizedOutputs)
    assert outputs.penalty > 1  # 8 M weights of the second layer alone weigh more
    torch.testing.assert_close(workload.loss(outputs, batch),
                               functional.cross_entropy(outputs.logits, batch[1]) + outputs.penalty)
    logits = workload.forward(model.eval(), batch)
    torch.testing.assert_close(workload.loss(logits, batch), functional.cross_entropy(logits, batch[1]))


def test_model_as_base_stays_as_it_was() -> None:
    case = make_case("model_a", "vo", "train", batch_size=2)
    loop = Loop(case, batches=iter([first_batch(case)]))
    model: Any = loop.model
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    loop.iteration(unmarked)
    moved = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert moved == {name for name in before if not name.startswith("base.")}
    assert all(parameter.grad is None for parameter in model.base.parameters())


def test_deitschs_form_regresses_the_probability_that_a_label_stands_for() -> None:
    workload = find_workload("model_a").prepare("deitsch")
    dataset: Any = workload.dataset(32, DataRequest())
    model: Any = workload.model(dataset).eval()
    nn.init.zeros_(model.fc3.weight)
    nn.init.constant_(model.fc3.bias, 0.7)
    labels = torch.tensor([0, 1, 2, 3])
    outputs = workload.forward(model, [torch.zeros(4, 3, 32, 32), labels])
    expected = np.mean((0.7 - np.array([0, 1 / 3, 2 / 3, 1])) ** 2)
    assert workload.loss(outputs, [None, labels]).item() == pytest.approx(expected, rel=1e-6)
    assert outputs.logits.argmax(1).tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize(("size", "remedy"), [(33, "use 39 or a multiple of 32"), (70, "use 71 or a multiple of 32")])
def test_model_b_refuses_sizes_that_its_networks_shrink_differently(size: int, remedy: str) -> None:
    with pytest.raises(UserError, match=f"input size {size} does not fit model_b: .*; {remedy}"):
        make_case("model_b", "vo", "train", batch_size=2, input_size=size).check()
