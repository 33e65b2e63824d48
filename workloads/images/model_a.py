"""Model A: VGG19's convolutions under new fully connected layers, in two published forms.

`vo`: Vo's benchmark at 32 px: the convolutions of VGG19 are frozen, four more and three regularized fully connected
layers are trained. `deitsch`: the network that it goes back to, at 300 px: one output, the probability that a solar
cell is defective, and in its second stage of training, which is what runs here, nothing is frozen.
The base has random weights here and ImageNet's there; the work is the same.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ._keras import (
    Published,
    PublishedForms,
    RegularizedDense,
    RegularizedOutputs,
    adam,
    initialize,
)
from .vgg import VGG


def _vgg19_convolutions() -> nn.Sequential:
    # The small form's classifier is thrown away without its 120 M weights having been drawn.
    return VGG(19, 1, batch_norm=False, cifar=True).features


class ModelA(nn.Module):
    """Frozen convolutions of VGG19, four convolutions, average pooling, three hidden layers, classifier.

    Source: Vo's benchmark (layo02/Deep-Learning-Hardware-Benchmark), utils/models.py.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for num_inputs in (512, 128, 128, 128):
            layers += [nn.Conv2d(num_inputs, 128, 3, padding=1), nn.ReLU(inplace=True)]
        self.convolutions = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = RegularizedDense(128, 4096)
        self.fc2 = RegularizedDense(4096, 2048)
        self.fc3 = RegularizedDense(2048, 128)
        self.dropout = nn.Dropout(0.5)
        self.predictions = nn.Linear(128, num_classes)
        initialize(self)
        self.base = _vgg19_convolutions().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor | RegularizedOutputs:
        """(N, 3, H, W) to logits, (N, classes); in training with the regularizers' penalty."""
        x = self.avgpool(self.convolutions(self.base(x))).flatten(1)
        hidden1 = self.fc1(x)
        hidden2 = self.fc2(self.dropout(hidden1))
        hidden3 = self.fc3(self.dropout(hidden2))
        logits: Tensor = self.predictions(hidden3)
        if not self.training:
            return logits
        penalty = self.fc1.penalty(hidden1) + self.fc2.penalty(hidden2) + self.fc3.penalty(hidden3)
        return RegularizedOutputs(logits, penalty)


class DefectOutputs(NamedTuple):
    """A defect probability for each sample, and how near it is to each class's.

    `logits` (N, classes) are greatest where the class's probability is nearest; `probability` is (N,), and `levels`
    (classes,) holds the classes' probabilities.
    """

    logits: Tensor
    probability: Tensor
    levels: Tensor


class DefectRegressor(nn.Module):
    """Convolutions of VGG19, average pooling, two hidden layers, one output.

    Source: Deitsch et al., "Automatic classification of defective photovoltaic module cells in electroluminescence
    images", Solar Energy 2019. Assumed, for want of its code: ReLU after the hidden layers, nothing after the output.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.base = _vgg19_convolutions()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Linear(512, 4096)
        self.fc2 = nn.Linear(4096, 2048)
        self.fc3 = nn.Linear(2048, 1)
        self.relu = nn.ReLU(inplace=True)
        self.levels: Tensor
        self.register_buffer("levels", torch.linspace(0, 1, num_classes), persistent=False)

    def forward(self, x: Tensor) -> DefectOutputs:
        """(N, 3, H, W) to a probability for each sample."""
        x = self.avgpool(self.base(x)).flatten(1)
        probability = self.fc3(self.relu(self.fc2(self.relu(self.fc1(x))))).squeeze(1)
        return DefectOutputs(-(probability[:, None] - self.levels).abs(), probability, self.levels)


# Classes are digits, or the four probabilities that experts gave solar cells.
_PUBLISHED = {"vo": Published(32, 64, 10), "deitsch": Published(300, 16, 4)}


@dataclass(kw_only=True)
class ModelAWorkload(PublishedForms):
    """Model A in Vo's form or in Deitsch's."""

    name: str = "model_a"
    source: str = "Vo, Deep Learning Hardware Benchmark, model A; Deitsch et al., Solar Energy 2019"
    year: int | None = 2019
    default_batch_size: int = _PUBLISHED["vo"].batch_size
    variants: tuple[str, ...] = tuple(_PUBLISHED)
    published: dict[str, Published] = field(default_factory=lambda: _PUBLISHED)

    @property
    def smallest_input_size(self) -> int:
        """Smallest size with one pixel after the base's five poolings by 2."""
        return 32

    def model(self, dataset: Any) -> nn.Module:
        """Return the network for the dataset's classes."""
        return (DefectRegressor if self.variant == "deitsch" else ModelA)(dataset.num_classes)

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        """`vo`: cross-entropy and the regularizers' penalty; `deitsch`: squared error of the probability.

        A label stands for a probability: the labels are spread evenly from 0 to 1.
        """
        if isinstance(outputs, DefectOutputs):
            return functional.mse_loss(outputs.probability, outputs.levels[batch[1]])
        return super().loss(outputs, batch)

    def optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        """`vo`: Adam over what is not frozen; `deitsch`: SGD over everything, as in its second stage."""
        if self.variant == "deitsch":
            return [torch.optim.SGD(model.parameters(), lr=5e-4, momentum=0.9)]
        return [adam(model)]


WORKLOADS = [ModelAWorkload()]
