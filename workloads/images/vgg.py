"""VGG with and without batch normalization, in its ImageNet form and in the CIFAR form (one linear classifier).

Layers have torchvision's names, so that traces and checkpoints match.
Source: Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", ICLR 2015, table 1
(configurations A, B, D, E); the pooling to 7×7 is torchvision's, the CIFAR form that of kuangliu/pytorch-cifar.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from charact.workload import ImageClassification

STAGE_WIDTHS = (64, 128, 256, 512, 512)
NUM_CONVOLUTIONS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
"""Convolutions in each of the five stages, by depth."""


def _features(depth: int, *, batch_norm: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    num_inputs = 3
    for width, num_convolutions in zip(STAGE_WIDTHS, NUM_CONVOLUTIONS[depth], strict=True):
        for _ in range(num_convolutions):
            layers.append(nn.Conv2d(num_inputs, width, 3, padding=1))
            if batch_norm:
                layers.append(nn.BatchNorm2d(width))
            layers.append(nn.ReLU(inplace=True))
            num_inputs = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers)


def _classifier(num_classes: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(512 * 7 * 7, 4096), nn.ReLU(inplace=True), nn.Dropout(0.5),
        nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(0.5),
        nn.Linear(4096, num_classes),
    )


class VGG(nn.Module):
    """Five stages of 3×3 convolutions, average pooling, classifier."""

    def __init__(self, depth: int, num_classes: int, *, batch_norm: bool, cifar: bool) -> None:
        super().__init__()
        self.features = _features(depth, batch_norm=batch_norm)
        self.avgpool = nn.AdaptiveAvgPool2d(1 if cifar else 7)
        self.classifier = nn.Sequential(nn.Linear(512, num_classes)) if cifar else _classifier(num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3, H, W) to logits, (N, classes)."""
        logits: Tensor = self.classifier(self.avgpool(self.features(x)).flatten(1))
        return logits


@dataclass(kw_only=True)
class VGGWorkload(ImageClassification):
    """A depth of VGG."""

    depth: int
    batch_norm: bool
    source: str = "Simonyan & Zisserman, Very Deep Convolutional Networks for Large-Scale Image Recognition, ICLR 2015"
    year: int | None = 2015
    default_batch_size: int = 4

    @property
    def smallest_input_size(self) -> int:
        """Smallest size with one pixel after five poolings by 2."""
        return 32

    def model(self, dataset: Any) -> VGG:
        """Return the network for the dataset's classes; convolutions are initialized after He et al. 2015."""
        return VGG(self.depth, dataset.num_classes, batch_norm=self.batch_norm, cifar=self.variant == "cifar")

    def optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        """Return SGD with the paper's settings: with a rate of .1, forms without batch normalization diverge."""
        return [torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)]


WORKLOADS = [  # names are literal, so that the shell completes them without importing PyTorch
    VGGWorkload(name="vgg11", depth=11, batch_norm=False),
    VGGWorkload(name="vgg11_bn", depth=11, batch_norm=True),
    VGGWorkload(name="vgg13", depth=13, batch_norm=False),
    VGGWorkload(name="vgg13_bn", depth=13, batch_norm=True),
    VGGWorkload(name="vgg16", aliases=("vgg",), depth=16, batch_norm=False),
    VGGWorkload(name="vgg16_bn", depth=16, batch_norm=True),
    VGGWorkload(name="vgg19", depth=19, batch_norm=False),
    VGGWorkload(name="vgg19_bn", depth=19, batch_norm=True),
]
