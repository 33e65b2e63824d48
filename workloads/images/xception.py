"""Xception as Keras defines it.

Source: Chollet, "Xception: Deep Learning with Depthwise Separable Convolutions", CVPR 2017, figure 5; paddings, epsilon
and momentum of keras-applications. Its stem is not padded, everything after it is padded so that only strides shrink.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from charact.workload import ImageClassification

from ._keras import Classifier, batch_norm

NUM_FEATURES = 2048
SMALLEST_INPUT_SIZE = 7
"""Smallest size with one pixel after the unpadded stem."""


class SeparableConv2d(nn.Sequential):
    """3×3 convolution of each channel alone, then 1×1 across channels: no bias, nothing in between."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__(
            nn.Conv2d(num_inputs, num_inputs, 3, padding=1, groups=num_inputs, bias=False),
            nn.Conv2d(num_inputs, num_outputs, 1, bias=False),
        )


class SameMaxPool2d(nn.Module):
    """3×3 max-pool of stride 2 that rounds up, as Keras pads for it: one pixel at the end, on odd sizes at both."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to (N, C, ⌈H/2⌉, ⌈W/2⌉)."""
        height, width = x.shape[-2:]
        # A window may stand over the end in this mode, and what is outside never is the greatest: padding without it.
        return functional.max_pool2d(x, 3, stride=2, padding=(height % 2, width % 2), ceil_mode=True)


def _separable(num_inputs: int, num_outputs: int, *, relu_first: bool = True) -> list[nn.Module]:
    # Where the input is also the shortcut's, it must not be overwritten: ReLU is not in place.
    convolution = [SeparableConv2d(num_inputs, num_outputs), batch_norm(num_outputs)]
    return [nn.ReLU(), *convolution] if relu_first else convolution


class Block(nn.Module):
    """Separable convolutions and a shortcut around them."""

    def __init__(self, convolutions: list[nn.Module], shortcut: nn.Module) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(*convolutions)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) to (N, outputs, h, w)."""
        outputs: Tensor = self.convolutions(x) + self.shortcut(x)
        return outputs


def _shrinking_block(num_inputs: int, width: int, num_outputs: int, *, relu_first: bool = True) -> Block:
    """Block that halves the side, with a convolution in its shortcut."""
    return Block(
        [*_separable(num_inputs, width, relu_first=relu_first), *_separable(width, num_outputs), SameMaxPool2d()],
        nn.Sequential(nn.Conv2d(num_inputs, num_outputs, 1, stride=2, bias=False), batch_norm(num_outputs)),
    )


class XceptionFeatures(nn.Sequential):
    """The network without its top, (N, 3, H, W) to (N, 2048, h, w); blocks carry the numbers that Keras gave them."""

    def __init__(self) -> None:
        super().__init__()
        self.block1 = nn.Sequential(
            nn.Conv2d(3, 32, 3, stride=2, bias=False), batch_norm(32), nn.ReLU(inplace=True),
            nn.Conv2d(32, 64, 3, bias=False), batch_norm(64), nn.ReLU(inplace=True),
        )
        self.block2 = _shrinking_block(64, 128, 128, relu_first=False)
        self.block3 = _shrinking_block(128, 256, 256)
        self.block4 = _shrinking_block(256, 728, 728)
        for number in range(5, 13):
            layers = [layer for _ in range(3) for layer in _separable(728, 728)]
            self.add_module(f"block{number}", Block(layers, nn.Identity()))
        self.block13 = _shrinking_block(728, 728, 1024)
        self.block14 = nn.Sequential(
            SeparableConv2d(1024, 1536), batch_norm(1536), nn.ReLU(inplace=True),
            SeparableConv2d(1536, NUM_FEATURES), batch_norm(NUM_FEATURES), nn.ReLU(inplace=True),
        )


def features_side(input_size: int) -> int:
    """Return the side length of the features in pixels."""
    after_stem = (input_size - 3) // 2 + 1 - 2
    return -(-after_stem // 16)


@dataclass(kw_only=True)
class XceptionWorkload(ImageClassification):
    """Xception."""

    name: str = "xception"
    source: str = "Chollet, Xception: Deep Learning with Depthwise Separable Convolutions, CVPR 2017; Keras"
    year: int | None = 2017
    default_batch_size: int = 8
    variants: tuple[str, ...] = ("imagenet",)

    @property
    def default_input_size(self) -> int:
        """Side length in pixels that ImageNet's images were scaled to."""
        return 299

    @property
    def smallest_input_size(self) -> int:
        """Smallest size with one pixel after the unpadded stem; in training it needs a batch of two or more."""
        return SMALLEST_INPUT_SIZE

    def model(self, dataset: Any) -> Classifier:
        """Return the network for the dataset's classes, initialized as in Keras."""
        return Classifier(XceptionFeatures(), NUM_FEATURES, dataset.num_classes)

    def optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        """Return SGD with the paper's settings for ImageNet."""
        return [torch.optim.SGD(model.parameters(), lr=0.045, momentum=0.9, weight_decay=1e-5)]


WORKLOADS = [XceptionWorkload()]
