"""Convolve2D: three wide strided convolutions without activations, the smallest network of Vo's benchmark.

Source: layo02/Deep-Learning-Hardware-Benchmark, utils/convolution.py. It was published in mixed precision: add
`--precision fp16` (on a GPU) to run it so.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from charact.workload import ImageClassification

from ._keras import adam, initialize

WIDTHS = (2048, 128, 64)


class SameConv2d(nn.Conv2d):
    """3×3 convolution of stride 2 that rounds up, as Keras pads for it: at the end, on odd sizes at both ends."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__(num_inputs, num_outputs, 3, stride=2)

    def forward(self, input: Tensor) -> Tensor:
        """(N, inputs, H, W) to (N, outputs, ⌈H/2⌉, ⌈W/2⌉)."""
        height, width = input.shape[-2:]
        return super().forward(functional.pad(input, (width % 2, 1, height % 2, 1)))


def convolve2d(input_size: int, num_classes: int) -> nn.Sequential:
    """Convolution and mean-pool, three times, then a classifier; each of the six halves the side and rounds up."""
    layers: dict[str, nn.Module] = {}
    for number, (num_inputs, width) in enumerate(zip((3, *WIDTHS), WIDTHS, strict=False), start=1):
        layers[f"conv{number}"] = SameConv2d(num_inputs, width)
        # Where a window stands over the end, the mean is that of the pixels inside it, as in Keras.
        layers[f"pool{number}"] = nn.AvgPool2d(2, ceil_mode=True)
    layers["flatten"] = nn.Flatten()
    layers["predictions"] = nn.Linear(WIDTHS[-1] * (-(-input_size // 64)) ** 2, num_classes)
    model = nn.Sequential(OrderedDict(layers))
    initialize(model)
    return model


@dataclass(kw_only=True)
class Convolve2DWorkload(ImageClassification):
    """Convolve2D."""

    name: str = "convolve2d"
    source: str = "Vo, Deep Learning Hardware Benchmark, Convolve2D"
    default_batch_size: int = 64
    variants: tuple[str, ...] = ("vo",)

    @property
    def default_input_size(self) -> int:
        """Side length in pixels that the images of Fashion-MNIST were scaled to."""
        return 32

    @property
    def smallest_input_size(self) -> int:
        """One pixel, since everything rounds up."""
        return 1

    @property
    def num_synthetic_classes(self) -> int:
        """Number of classes of Fashion-MNIST."""
        return 10

    def model(self, dataset: Any) -> nn.Sequential:
        """Return the network for the dataset's classes and its images' size, initialized as in Keras."""
        return convolve2d(dataset.input_size, dataset.num_classes)

    def optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        """Return Adam with Keras's defaults."""
        return [adam(model)]


WORKLOADS = [Convolve2DWorkload()]
