"""GoogLeNet with batch normalization, and with its two auxiliary classifiers in training.

Layers have torchvision's names, so that traces and checkpoints match.
Source: Szegedy et al., "Going Deeper with Convolutions", CVPR 2015, table 1. Batch normalization (epsilon 1e-3),
pooling that rounds up and the auxiliary classifiers' pooling to 4×4 at any input size are torchvision's, and so is the
default variant's 3×3 in the branch that the paper gives 5×5 (pytorch/vision issue 906); the variant `paper` has 5×5.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from charact.workload import ImageClassification

AUXILIARY_WEIGHT = 0.3
"""Share of each auxiliary loss. Source: the paper, section 5."""


class Widths(NamedTuple):
    """Channels of an inception block's convolutions, in the order of the paper's table 1."""

    one: int
    three_reduced: int
    three: int
    five_reduced: int
    five: int
    pooled: int

    @property
    def outputs(self) -> int:
        """Channels of the block's output."""
        return self.one + self.three + self.five + self.pooled


INCEPTIONS = {
    "3a": Widths(64, 96, 128, 16, 32, 32), "3b": Widths(128, 128, 192, 32, 96, 64),
    "4a": Widths(192, 96, 208, 16, 48, 64), "4b": Widths(160, 112, 224, 24, 64, 64),
    "4c": Widths(128, 128, 256, 24, 64, 64), "4d": Widths(112, 144, 288, 32, 64, 64),
    "4e": Widths(256, 160, 320, 32, 128, 128), "5a": Widths(256, 160, 320, 32, 128, 128),
    "5b": Widths(384, 192, 384, 48, 128, 128),
}


class GoogLeNetOutputs(NamedTuple):
    """Outputs in training: logits of the classifier and of the auxiliary ones after 4a and 4d, (N, classes) each."""

    logits: Tensor
    aux1_logits: Tensor
    aux2_logits: Tensor


class BasicConv2d(nn.Module):
    """Convolution without bias, batch normalization, ReLU."""

    def __init__(self, num_inputs: int, num_outputs: int, kernel_size: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(num_inputs, num_outputs, kernel_size, stride, padding=kernel_size // 2, bias=False)
        self.bn = nn.BatchNorm2d(num_outputs, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) to (N, outputs, H/stride, W/stride)."""
        return functional.relu(self.bn(self.conv(x)), inplace=True)


class Inception(nn.Module):
    """Four branches in parallel over the same input: 1×1, 3×3, a wider one and a max-pool."""

    def __init__(self, num_inputs: int, widths: Widths, wide_kernel: int) -> None:
        super().__init__()
        self.branch1 = BasicConv2d(num_inputs, widths.one, 1)
        self.branch2 = nn.Sequential(
            BasicConv2d(num_inputs, widths.three_reduced, 1), BasicConv2d(widths.three_reduced, widths.three, 3))
        self.branch3 = nn.Sequential(
            BasicConv2d(num_inputs, widths.five_reduced, 1), BasicConv2d(widths.five_reduced, widths.five, wide_kernel))
        self.branch4 = nn.Sequential(
            nn.MaxPool2d(3, stride=1, padding=1, ceil_mode=True), BasicConv2d(num_inputs, widths.pooled, 1))

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) to (N, outputs, H, W)."""
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], 1)


class Auxiliary(nn.Module):
    """Classifier on an inner layer's output, which brings gradients to the early layers."""

    def __init__(self, num_inputs: int, num_classes: int) -> None:
        super().__init__()
        self.conv = BasicConv2d(num_inputs, 128, 1)
        self.fc1 = nn.Linear(128 * 4 * 4, 1024)
        self.fc2 = nn.Linear(1024, num_classes)
        self.dropout = nn.Dropout(0.7)

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) to logits, (N, classes)."""
        x = self.conv(functional.adaptive_avg_pool2d(x, 4)).flatten(1)
        logits: Tensor = self.fc2(self.dropout(functional.relu(self.fc1(x), inplace=True)))
        return logits


class GoogLeNet(nn.Module):
    """Stem, nine inception blocks, average pooling, classifier; two auxiliary classifiers that run in training only.

    The auxiliary classifiers' weights are there in inference too, since one model serves both.
    """

    def __init__(self, num_classes: int, wide_kernel: int) -> None:
        super().__init__()
        self.conv1 = BasicConv2d(3, 64, 7, stride=2)
        self.maxpool1 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.conv2 = BasicConv2d(64, 64, 1)
        self.conv3 = BasicConv2d(64, 192, 3)
        self.maxpool2 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        num_inputs = 192
        for name, widths in INCEPTIONS.items():
            self.add_module(f"inception{name}", Inception(num_inputs, widths, wide_kernel))
            num_inputs = widths.outputs
        self.maxpool3 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.maxpool4 = nn.MaxPool2d(2, stride=2, ceil_mode=True)
        self.aux1 = Auxiliary(INCEPTIONS["4a"].outputs, num_classes)
        self.aux2 = Auxiliary(INCEPTIONS["4d"].outputs, num_classes)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(num_inputs, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                # torchvision truncates it at 200 deviations, which cuts nothing off.
                nn.init.normal_(module.weight, std=0.01)

    def forward(self, x: Tensor) -> Tensor | GoogLeNetOutputs:
        """(N, 3, H, W) to logits, (N, classes); in training with those of the auxiliary classifiers."""
        x = self.maxpool2(self.conv3(self.conv2(self.maxpool1(self.conv1(x)))))
        x = self.maxpool3(self._inceptions(x, "3a", "3b"))
        after_4a = self._inceptions(x, "4a")
        after_4d = self._inceptions(after_4a, "4b", "4c", "4d")
        x = self.maxpool4(self._inceptions(after_4d, "4e"))
        x = self.avgpool(self._inceptions(x, "5a", "5b")).flatten(1)
        logits: Tensor = self.fc(self.dropout(x))
        if not self.training:
            return logits
        return GoogLeNetOutputs(logits, self.aux1(after_4a), self.aux2(after_4d))

    def _inceptions(self, x: Tensor, *names: str) -> Tensor:
        for name in names:
            x = self.get_submodule(f"inception{name}")(x)
        return x


@dataclass(kw_only=True)
class GoogLeNetWorkload(ImageClassification):
    """GoogLeNet, as torchvision has it or with the paper's 5×5 convolutions."""

    name: str = "googlenet"
    source: str = "Szegedy et al., Going Deeper with Convolutions, CVPR 2015"
    year: int | None = 2015
    default_batch_size: int = 8
    variants: tuple[str, ...] = ("torchvision", "paper")

    @property
    def smallest_input_size(self) -> int:
        """Smallest size with enough pixels for the third pooling's window."""
        return 15

    def model(self, dataset: Any) -> GoogLeNet:
        """Return the network for the dataset's classes, with narrow normal weights, as in torchvision."""
        return GoogLeNet(dataset.num_classes, wide_kernel=5 if self.variant == "paper" else 3)

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        """Return the cross-entropy of the logits, in training with .3 of that of each auxiliary classifier."""
        if isinstance(outputs, Tensor):
            return functional.cross_entropy(outputs, batch[1])
        main, *auxiliary = (functional.cross_entropy(logits, batch[1]) for logits in outputs)
        return main + AUXILIARY_WEIGHT * (auxiliary[0] + auxiliary[1])

    def optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        """Return SGD; momentum is the paper's, which leaves the rest unsaid: it is that of BVLC's Caffe model."""
        return [torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=2e-4)]


WORKLOADS = [GoogLeNetWorkload()]
