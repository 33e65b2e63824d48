"""A multi-layer perceptron on images: only matrix products.

Source: the example `mnist_mlp` of Keras: two hidden layers of 512 with ReLU and dropout, RMSprop, batch 128. Pictures
have three channels here, with three equal copies for gray ones.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from charact.workload import ImageClassification

from ._keras import EPSILON, initialize

WIDTH = 512


def mlp(input_size: int, num_classes: int) -> nn.Sequential:
    """Network from (N, 3, size, size) to logits, (N, classes)."""
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(3 * input_size**2, WIDTH), nn.ReLU(inplace=True), nn.Dropout(0.2),
        nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), nn.Dropout(0.2),
        nn.Linear(WIDTH, num_classes),
    )
    initialize(model)
    return model


@dataclass(kw_only=True)
class MLPWorkload(ImageClassification):
    """Multi-layer perceptron."""

    name: str = "mlp"
    source: str = "Keras, example mnist_mlp"
    default_batch_size: int = 128
    variants: tuple[str, ...] = ("mnist",)

    @property
    def default_input_size(self) -> int:
        """Side length in pixels of MNIST's images."""
        return 28

    @property
    def smallest_input_size(self) -> int:
        """One pixel."""
        return 1

    @property
    def num_synthetic_classes(self) -> int:
        """Number of classes of MNIST."""
        return 10

    def model(self, dataset: Any) -> nn.Sequential:
        """Return the network for the dataset's classes and its images' size, initialized as in Keras."""
        return mlp(dataset.input_size, dataset.num_classes)

    def optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        """Return RMSprop with Keras's defaults."""
        return [torch.optim.RMSprop(model.parameters(), lr=1e-3, alpha=0.9, eps=EPSILON)]


WORKLOADS = [MLPWorkload()]
