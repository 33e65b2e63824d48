"""Model B: Xception and a ResNet version 2 in parallel over the same image, in two published forms.

`vo`: Vo's benchmark at 32 px, with ResNet152V2 and a regularized hidden layer. `rahimzadeh`: the network that it goes
back to, at 300 px, with ResNet50V2 and a classifier on the flattened features. Everything is trained in both.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from charact.core.errors import UserError
from charact.workload import DataRequest

from . import resnet_v2, xception
from ._keras import (
    EPSILON,
    Published,
    PublishedForms,
    RegularizedDense,
    RegularizedOutputs,
    adam,
    initialize,
)

if TYPE_CHECKING:
    from torch.utils.data import Dataset

NUM_FEATURES = xception.NUM_FEATURES + resnet_v2.NUM_FEATURES


class TwoBases(nn.Module):
    """Features of both networks, one after the other along the channels."""

    def __init__(self, resnet_depth: int) -> None:
        super().__init__()
        self.xception = xception.XceptionFeatures()
        self.resnet = resnet_v2.ResNetV2Features(resnet_v2.NUM_BLOCKS[resnet_depth])

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3, H, W) to (N, 4096, h, w)."""
        return torch.cat([self.xception(x), self.resnet(x)], 1)


class ModelB(nn.Module):
    """Both bases, 3×3 convolution, average pooling, a hidden layer, classifier.

    Source: Vo's benchmark (layo02/Deep-Learning-Hardware-Benchmark), utils/models.py.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.bases = TwoBases(resnet_depth=152)
        self.convolution = nn.Conv2d(NUM_FEATURES, 1024, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.5)
        self.fc = RegularizedDense(1024, 1024)
        self.predictions = nn.Linear(1024, num_classes)
        initialize(self)

    def forward(self, x: Tensor) -> Tensor | RegularizedOutputs:
        """(N, 3, H, W) to logits, (N, classes); in training with the regularizers' penalty."""
        x = self.avgpool(self.relu(self.convolution(self.bases(x)))).flatten(1)
        hidden = self.fc(self.dropout(x))
        logits: Tensor = self.predictions(hidden)
        return RegularizedOutputs(logits, self.fc.penalty(hidden)) if self.training else logits


class ConcatenatedClassifier(nn.Module):
    """Both bases, 1×1 convolution without activation, dropout and a classifier on the flattened features.

    Source: Rahimzadeh and Attar, "A modified deep convolutional neural network for detecting COVID-19 and pneumonia
    from chest X-ray images", Informatics in Medicine Unlocked 2020, and its notebook (mr7495/covid19).
    """

    def __init__(self, features_side: int, num_classes: int) -> None:
        super().__init__()
        self.bases = TwoBases(resnet_depth=50)
        self.convolution = nn.Conv2d(NUM_FEATURES, 1024, 1)
        self.dropout = nn.Dropout(0.5)
        self.predictions = nn.Linear(1024 * features_side**2, num_classes)
        initialize(self)
        nn.init.normal_(self.predictions.weight, std=0.001)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3, H, W) to logits, (N, classes)."""
        logits: Tensor = self.predictions(self.dropout(self.convolution(self.bases(x)).flatten(1)))
        return logits


# Classes are digits, or normal, pneumonia and COVID-19.
_PUBLISHED = {"vo": Published(32, 64, 10), "rahimzadeh": Published(300, 20, 3)}


@dataclass(kw_only=True)
class ModelBWorkload(PublishedForms):
    """Model B in Vo's form or in Rahimzadeh's."""

    name: str = "model_b"
    source: str = "Vo, Deep Learning Hardware Benchmark, model B; Rahimzadeh & Attar, Inform. Med. Unlocked 2020"
    year: int | None = 2020
    default_batch_size: int = _PUBLISHED["vo"].batch_size
    variants: tuple[str, ...] = tuple(_PUBLISHED)
    published: dict[str, Published] = field(default_factory=lambda: _PUBLISHED)

    @property
    def smallest_input_size(self) -> int:
        """Xception's; in training such a batch needs two samples or more."""
        return xception.SMALLEST_INPUT_SIZE

    def dataset(self, input_size: int, request: DataRequest) -> "Dataset[Any]":
        """Return labelled images of 3 channels, (float32 (3, size, size), int64)."""
        sides = xception.features_side(input_size), resnet_v2.features_side(input_size)
        if sides[0] != sides[1]:
            # Xception's unpadded stem loses what six pixels more than a multiple of 32 would have given.
            fitting = (input_size - 1) // 32 * 32 + xception.SMALLEST_INPUT_SIZE
            raise UserError(f"input size {input_size} does not fit {self.name}: a side has {sides[0]} pixels after "
                            f"Xception and {sides[1]} after ResNet; use {fitting} or a multiple of 32")
        return super().dataset(input_size, request)

    def model(self, dataset: Any) -> nn.Module:
        """Return the network for the dataset's classes and image size, initialized as in Keras."""
        if self.variant == "rahimzadeh":
            return ConcatenatedClassifier(resnet_v2.features_side(dataset.input_size), dataset.num_classes)
        return ModelB(dataset.num_classes)

    def optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        """`vo`: Adam; `rahimzadeh`: Nadam, whose schedule decays alike in Keras and PyTorch."""
        if self.variant == "rahimzadeh":
            return [torch.optim.NAdam(model.parameters(), lr=1e-4, eps=EPSILON, momentum_decay=4e-3)]
        return [adam(model)]


WORKLOADS = [ModelBWorkload()]
