"""U-Net: segments images by an encoder and a decoder with shortcuts between equal resolutions.

Source: Ronneberger, Fischer and Brox, "U-Net: Convolutional Networks for Biomedical Image Segmentation", MICCAI 2015,
figure 1. Convolutions are padded, so that outputs have the input's size, and followed by batch normalization instead of
a bias, as in milesial/Pytorch-UNet; the paper has neither. Images have three channels.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from charact.datasets._samples.masks import mask_dataset
from charact.workload import DataRequest, Workload
from charact.workload.metrics import Metric, PixelAccuracy

WIDTHS = {"base16": 16, "base64": 64}
"""Channels at full resolution, by variant; each of the four levels below doubles them."""
NUM_LEVELS = 4


def _convolutions(num_inputs: int, width: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (num_inputs, width):
        layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Five pairs of convolutions with poolings between them, and four on the way back to full resolution."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(NUM_LEVELS + 1)]
        self.encoder = nn.ModuleList(
            _convolutions(num_inputs, each) for num_inputs, each in zip([3, *widths], widths, strict=False))
        self.pool = nn.MaxPool2d(2)
        self.upsampling = nn.ModuleList(nn.ConvTranspose2d(2 * each, each, 2, stride=2) for each in widths[-2::-1])
        self.decoder = nn.ModuleList(_convolutions(2 * each, each) for each in widths[-2::-1])
        self.head = nn.Conv2d(width, num_classes, 1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) to logits, (N, classes, H, W)."""
        shortcuts = []
        x = self.encoder[0](images)
        for convolutions in self.encoder[1:]:
            shortcuts.append(x)
            x = convolutions(self.pool(x))
        for upsample, convolutions in zip(self.upsampling, self.decoder, strict=True):
            x = convolutions(torch.cat((shortcuts.pop(), upsample(x)), dim=1))
        logits: Tensor = self.head(x)
        return logits


@dataclass(kw_only=True)
class UNetWorkload(Workload):
    """A width of U-Net: the paper's 64 channels at full resolution, or 16."""

    name: str = "unet"
    source: str = "Ronneberger et al., U-Net: Convolutional Networks for Biomedical Image Segmentation, MICCAI 2015"
    year: int | None = 2015
    input_kind: Literal["image"] = "image"
    default_batch_size: int = 2
    variants: tuple[str, ...] = tuple(WIDTHS)

    @property
    def default_input_size(self) -> int:
        """Side in pixels, about half of that of the paper's images."""
        return 256

    @property
    def smallest_input_size(self) -> int:
        """One pixel at the lowest resolution, where training needs a batch of 2 or more for batch normalization."""
        return self.input_size_step

    @property
    def input_size_step(self) -> int:
        """16: four poolings halve the side."""
        return 1 << NUM_LEVELS

    def dataset(self, input_size: int, request: DataRequest) -> Any:
        """Return images and masks, (float32 (3, size, size), int64 (size, size))."""
        return mask_dataset(request, input_size=input_size, num_synthetic_classes=2)

    def model(self, dataset: Any) -> UNet:
        """Return the network for the dataset's classes, initialized after He et al. 2015 as in the paper."""
        return UNet(WIDTHS[self.variant], dataset.num_classes)

    def forward(self, model: nn.Module, batch: Any) -> Any:
        """Return logits of every pixel, (batch, classes, size, size)."""
        return model(batch[0])

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        """Return the cross-entropy of all pixels; the paper gives borders between cells more weight."""
        return functional.cross_entropy(outputs, batch[1])

    def optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        """Return SGD with the published momentum; the learning rate was not published."""
        return [torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.99)]

    def metrics(self, dataset: Any) -> list[Metric]:
        """Return the accuracy of pixels."""
        return [PixelAccuracy()]


WORKLOADS = [UNetWorkload()]
