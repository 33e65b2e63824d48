"""ResNet version 2, which normalizes before it convolves, as Keras defines it.

Source: He et al., "Identity Mappings in Deep Residual Networks", ECCV 2016; keras-applications, which differs from the
paper: a bottleneck's last convolution and the projections have biases, a stage shrinks in its last block instead of its
first, and the stem's max-pool sees a border of zeros.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from charact.workload import ImageClassification

from ._keras import Classifier, batch_norm

NUM_FEATURES = 2048
NUM_BLOCKS = {50: (3, 4, 6, 3), 152: (3, 8, 36, 3)}
"""Blocks in each of the four stages, by depth."""


def _batch_norm(num_channels: int) -> nn.BatchNorm2d:
    return batch_norm(num_channels, eps=1.001e-5)


class PreactivatedBottleneck(nn.Module):
    """Batch normalization and ReLU, then 1×1, 3×3 and 1×1 convolutions, and a shortcut.

    The shortcut of a stage's first block is a convolution of the normalized input, in all others the input itself,
    of which a stride leaves every second pixel.
    """

    def __init__(self, num_inputs: int, width: int, stride: int) -> None:
        super().__init__()
        num_outputs = 4 * width
        self.preactivation_bn = _batch_norm(num_inputs)
        self.conv1 = nn.Conv2d(num_inputs, width, 1, bias=False)
        self.bn1 = _batch_norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = _batch_norm(width)
        self.conv3 = nn.Conv2d(width, num_outputs, 1)
        self.relu = nn.ReLU(inplace=True)
        self.projection = nn.Conv2d(num_inputs, num_outputs, 1) if num_inputs != num_outputs else None
        self.subsample = nn.MaxPool2d(1, stride) if stride > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) to (N, 4·width, H/stride, W/stride)."""
        normalized = self.relu(self.preactivation_bn(x))
        shortcut = x if self.projection is None else self.projection(normalized)
        if self.subsample is not None:
            shortcut = self.subsample(shortcut)
        x = self.relu(self.bn1(self.conv1(normalized)))
        x = self.relu(self.bn2(self.conv2(x)))
        outputs: Tensor = self.conv3(x) + shortcut
        return outputs


def _stage(num_inputs: int, width: int, num_blocks: int, stride: int) -> nn.Sequential:
    inputs = [num_inputs, *[4 * width] * (num_blocks - 1)]
    strides = [*[1] * (num_blocks - 1), stride]
    return nn.Sequential(*(PreactivatedBottleneck(channels, width, step)
                           for channels, step in zip(inputs, strides, strict=True)))


class ResNetV2Features(nn.Module):
    """The network without its top; stages carry the numbers that Keras gave them."""

    def __init__(self, num_blocks: tuple[int, int, int, int]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3)
        self.pool1 = nn.MaxPool2d(3, stride=2)
        self.conv2 = _stage(64, 64, num_blocks[0], stride=2)
        self.conv3 = _stage(256, 128, num_blocks[1], stride=2)
        self.conv4 = _stage(512, 256, num_blocks[2], stride=2)
        self.conv5 = _stage(1024, 512, num_blocks[3], stride=1)
        self.post_bn = _batch_norm(NUM_FEATURES)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3, H, W) to (N, 2048, ⌈H/32⌉, ⌈W/32⌉)."""
        # The pool's own padding would be -inf; Keras pads with zeros, which are greater than negative values.
        x = self.pool1(functional.pad(self.conv1(x), (1, 1, 1, 1)))
        x = self.conv5(self.conv4(self.conv3(self.conv2(x))))
        outputs: Tensor = self.relu(self.post_bn(x))
        return outputs


def features_side(input_size: int) -> int:
    """Return the side length of the features in pixels."""
    return -(-input_size // 32)


@dataclass(kw_only=True)
class ResNetV2Workload(ImageClassification):
    """A depth of ResNet version 2."""

    depth: int
    source: str = "He et al., Identity Mappings in Deep Residual Networks, ECCV 2016; Keras"
    year: int | None = 2016
    default_batch_size: int = 8
    variants: tuple[str, ...] = ("imagenet",)

    @property
    def smallest_input_size(self) -> int:
        """One pixel, since everything is padded; in training up to 32 px need a batch of two or more."""
        return 1

    def model(self, dataset: Any) -> Classifier:
        """Return the network for the dataset's classes, initialized as in Keras."""
        return Classifier(ResNetV2Features(NUM_BLOCKS[self.depth]), NUM_FEATURES, dataset.num_classes)

    def optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        """Return SGD with the paper's settings."""
        return [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)]


WORKLOADS = [ResNetV2Workload(name="resnet50v2", depth=50), ResNetV2Workload(name="resnet152v2", depth=152)]
