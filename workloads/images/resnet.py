"""ResNet, in its ImageNet form and in the CIFAR form (a 3×3 stem that keeps the resolution, no max-pool).

Layers have torchvision's names, so that traces and checkpoints match.
Source: He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, table 1; the stride of a bottleneck sits
on its 3×3 convolution, as in torchvision; the CIFAR form is that of kuangliu/pytorch-cifar.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from charact.workload import ImageClassification


def _convolution(num_inputs: int, num_outputs: int, kernel_size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(num_inputs, num_outputs, kernel_size, stride, padding=kernel_size // 2, bias=False)


def _shortcut(num_inputs: int, num_outputs: int, stride: int) -> nn.Sequential | None:
    """Projection to a block's output shape; none where the input already has it."""
    if stride == 1 and num_inputs == num_outputs:
        return None
    return nn.Sequential(_convolution(num_inputs, num_outputs, 1, stride), nn.BatchNorm2d(num_outputs))


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut: the block of ResNet-18 and -34."""

    expansion = 1

    def __init__(self, num_inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _convolution(num_inputs, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = _convolution(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(num_inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) to (N, width, H/stride, W/stride)."""
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.bn2(self.conv2(x))
        outputs: Tensor = self.relu(x + shortcut)
        return outputs


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions and a shortcut: the block of ResNet-50 and deeper."""

    expansion = 4

    def __init__(self, num_inputs: int, width: int, stride: int) -> None:
        super().__init__()
        num_outputs = width * self.expansion
        self.conv1 = _convolution(num_inputs, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _convolution(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _convolution(width, num_outputs, 1)
        self.bn3 = nn.BatchNorm2d(num_outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(num_inputs, num_outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) to (N, 4·width, H/stride, W/stride)."""
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        x = self.bn3(self.conv3(x))
        outputs: Tensor = self.relu(x + shortcut)
        return outputs


Block = type[BasicBlock] | type[Bottleneck]


class ResNet(nn.Module):
    """Stem, four stages of blocks, average pooling, classifier."""

    def __init__(self, block: Block, num_blocks: tuple[int, ...], num_classes: int, *, cifar: bool) -> None:
        super().__init__()
        self.conv1 = _convolution(3, 64, 3) if cifar else _convolution(3, 64, 7, stride=2)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = None if cifar else nn.MaxPool2d(3, stride=2, padding=1)
        expansion = block.expansion
        self.layer1 = _stage(block, 64, 64, num_blocks[0], stride=1)
        self.layer2 = _stage(block, 64 * expansion, 128, num_blocks[1], stride=2)
        self.layer3 = _stage(block, 128 * expansion, 256, num_blocks[2], stride=2)
        self.layer4 = _stage(block, 256 * expansion, 512, num_blocks[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512 * expansion, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3, H, W) to logits, (N, classes)."""
        x = self.relu(self.bn1(self.conv1(x)))
        if self.maxpool is not None:
            x = self.maxpool(x)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(self.avgpool(x).flatten(1))
        return logits


def _stage(block: Block, num_inputs: int, width: int, num_blocks: int, stride: int) -> nn.Sequential:
    rest = [block(width * block.expansion, width, 1) for _ in range(num_blocks - 1)]
    return nn.Sequential(block(num_inputs, width, stride), *rest)


@dataclass(kw_only=True)
class ResNetWorkload(ImageClassification):
    """A depth of ResNet."""

    block: Block
    num_blocks: tuple[int, int, int, int]
    source: str = "He et al., Deep Residual Learning for Image Recognition, CVPR 2016"
    year: int | None = 2016
    default_batch_size: int = 8

    @property
    def smallest_input_size(self) -> int:
        """One pixel: every convolution and pooling is padded, so none runs out of input.

        In training, batch normalization needs more than one value per channel, hence a batch of 2 or more where the
        last stage is down to one pixel: up to 32 px (`imagenet`) or 8 px (`cifar`).
        """
        return 1

    def model(self, dataset: Any) -> ResNet:
        """Return the network for the dataset's classes; convolutions are initialized after He et al. 2015."""
        return ResNet(self.block, self.num_blocks, dataset.num_classes, cifar=self.variant == "cifar")

    def schedulers(self, optimizers: list[torch.optim.Optimizer], num_epochs: int) -> list[Any]:
        """From the full learning rate to none along a cosine, as in the CIFAR-10 recipe of the optimizer's settings."""
        return [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=num_epochs) for optimizer in optimizers]


WORKLOADS = [
    ResNetWorkload(name="resnet18", block=BasicBlock, num_blocks=(2, 2, 2, 2)),
    ResNetWorkload(name="resnet34", block=BasicBlock, num_blocks=(3, 4, 6, 3)),
    ResNetWorkload(name="resnet50", aliases=("resnet",), block=Bottleneck, num_blocks=(3, 4, 6, 3)),
    ResNetWorkload(name="resnet101", block=Bottleneck, num_blocks=(3, 4, 23, 3)),
    ResNetWorkload(name="resnet152", block=Bottleneck, num_blocks=(3, 8, 36, 3)),
]
