"""Image classification: loss, optimizer and metric of image classifiers."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from charact.datasets._common.request import DataRequest
from charact.workload.base import Workload

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.utils.data import Dataset

    from charact.workload.metrics import Metric


@dataclass(kw_only=True)
class ImageClassification(Workload):
    """Base class of image classifiers: labelled square images, cross-entropy, SGD with momentum.

    Source: learning rate .1, momentum .9, weight decay 5e-4 is the CIFAR-10 recipe of kuangliu/pytorch-cifar; an
    optimizer's cost does not depend on these values.
    """

    input_kind: Literal["image", "sequence"] = "image"
    variants: tuple[str, ...] = ("imagenet", "cifar")

    @property
    def default_input_size(self) -> int:
        """Side length in pixels of the variant's published data set."""
        return 32 if self.variant == "cifar" else 224

    @property
    def num_synthetic_classes(self) -> int:
        """Number of classes of synthetic data: that of the variant's published data set."""
        return 10 if self.variant == "cifar" else 1000

    def dataset(self, input_size: int, request: DataRequest) -> "Dataset[Any]":
        """Return labelled images of 3 channels, (float32 (3, size, size), int64)."""
        from charact.datasets._samples.images import image_dataset

        return image_dataset(request, input_size=input_size, num_synthetic_classes=self.num_synthetic_classes)

    def forward(self, model: "nn.Module", batch: Any) -> Any:
        """Return the logits, (batch, classes)."""
        return model(batch[0])

    def loss(self, outputs: Any, batch: Any) -> "Tensor":
        """Return the cross-entropy of the logits against the labels."""
        from torch.nn import functional

        return functional.cross_entropy(outputs, batch[1])

    def optimizers(self, model: "nn.Module") -> "list[Optimizer]":
        """Return SGD with momentum over all parameters."""
        import torch

        return [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)]

    def metrics(self, dataset: "Dataset[Any]") -> "list[Metric]":
        """Return the accuracy."""
        from charact.workload.metrics import Accuracy

        return [Accuracy()]
