"""Labelled images as PyTorch datasets."""

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset

from charact.datasets._common.registry import stored_content
from charact.datasets._common.request import DataRequest
from charact.datasets._common.spec import Labels, Pictures, Split
from charact.datasets.synthetic import NUM_PICTURES, make_label, make_picture


class ImageDataset(Dataset[tuple[Tensor, int]]):
    """Samples (float32 (3, size, size) in [0, 1], label from 0 to num_classes - 1)."""

    def __init__(self, num_pictures: int, num_classes: int) -> None:
        self.num_pictures = num_pictures
        self.num_classes = num_classes

    def __len__(self) -> int:
        return self.num_pictures


_KEPT_BYTES = 32 * 2**20


class SyntheticImages(ImageDataset):
    """Noise images: the same for the same seed, split and index in every process.

    Some are drawn at their first use, at most 32 MiB of them, and return for other indices: fetching a sample should
    cost next to nothing, and drawing one takes about 1 ms at 224 pixels.
    """

    def __init__(self, seed: int, split: Split, input_size: int, num_classes: int) -> None:
        super().__init__(NUM_PICTURES[split], num_classes)
        self.seed = seed
        self.split: Split = split
        self.input_size = input_size
        self._drawn: dict[int, Tensor] = {}
        self._num_drawn = max(2, _KEPT_BYTES // (4 * 3 * max(1, input_size) ** 2))

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = index % self._num_drawn
        if number not in self._drawn:
            self._drawn[number] = self.draw(number)
        return self._drawn[number], make_label(self.seed, self.split, index, self.num_classes)

    def draw(self, number: int) -> Tensor:
        """Return the image with a number."""
        return torch.from_numpy(make_picture(self.seed, self.split, number, self.input_size))


class StoredImages(ImageDataset):
    """Images of a file, stored as bytes (forked workers share them) and scaled when a sample is fetched."""

    def __init__(self, images: Pictures, labels: Labels, input_size: int, num_classes: int) -> None:
        super().__init__(len(images), num_classes)
        self.images = images
        self.labels = labels
        self.input_size = input_size

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        picture = torch.from_numpy(self.images[index]).float().div_(255)
        channels = picture if picture.ndim == 3 else picture[None]
        size = (self.input_size, self.input_size)
        scaled = functional.interpolate(channels[None], size, mode="bilinear", align_corners=False)[0]
        return scaled.expand(3, -1, -1), int(self.labels[index])


def image_dataset(request: DataRequest, *, input_size: int, num_synthetic_classes: int) -> ImageDataset:
    """Return labelled images at an input size: samples (float32 (3, size, size) in [0, 1], int label).

    Stored images are scaled bilinearly to the input size, and gray ones get three equal channels. Values are divided by
    255, without standardization. `num_synthetic_classes` is the default number of classes of synthetic data.
    """
    stored = stored_content(request, "image")
    if stored is None:
        num_classes = request.synthetic.num_classes or num_synthetic_classes
        return SyntheticImages(request.seed, request.split, input_size, num_classes)
    spec, (images, labels) = stored
    assert spec.num_classes is not None
    return StoredImages(images, labels, input_size, spec.num_classes)
