"""Images with a class for each pixel, as a PyTorch dataset."""

from typing import TYPE_CHECKING

from torch import Tensor
from torch.utils.data import Dataset

from charact.datasets._common.registry import stored_content
from charact.datasets._samples.images import SyntheticImages

if TYPE_CHECKING:
    from charact.datasets._common.request import DataRequest


class SyntheticMasks(Dataset[tuple[Tensor, Tensor]]):
    """Noise images (float32 (3, size, size)) and masks (int64 (size, size)).

    A pixel's class is the interval of its first channel among `num_classes` equal intervals of [0, 1), so that a
    network can learn it.
    """

    def __init__(self, request: "DataRequest", input_size: int, num_classes: int) -> None:
        self.num_classes = num_classes
        self._images = SyntheticImages(request.seed, request.split, input_size, num_classes)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, _ = self._images[index]
        return image, (image[0] * self.num_classes).long()


def mask_dataset(request: "DataRequest", *, input_size: int, num_synthetic_classes: int) -> SyntheticMasks:
    """Return images and masks at an input size; only synthetic ones exist.

    `num_synthetic_classes` is the default number of classes.
    """
    stored_content(request, "segmentation")  # raises for stored data sets: none has masks
    return SyntheticMasks(request, input_size, request.synthetic.num_classes or num_synthetic_classes)
