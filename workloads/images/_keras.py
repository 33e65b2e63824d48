"""Helpers for workloads from Keras: its defaults where they differ from PyTorch's, and Vo's regularizers.

Keras networks end in a softmax and take the cross-entropy of probabilities; here they give logits, and the softmax is
part of the loss.
Source: keras-applications; the layers' and optimizers' documented defaults.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from charact.workload import ImageClassification

EPSILON = 1e-7
"""Of Keras's optimizers, where PyTorch has 1e-8."""


def batch_norm(num_channels: int, eps: float = 1e-3) -> nn.BatchNorm2d:
    """Return batch normalization with Keras's defaults: its momentum .99 weighs the past, PyTorch's .01 the present."""
    return nn.BatchNorm2d(num_channels, eps=eps, momentum=0.01)


def initialize(model: nn.Module) -> None:
    """Draw the weights as Keras does: Glorot's uniform distribution, and no bias."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def adam(model: nn.Module) -> torch.optim.Adam:
    """Return Adam with Keras's defaults over what is not frozen."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.Adam(trainable, lr=1e-3, betas=(0.9, 0.999), eps=EPSILON)


class Classifier(nn.Module):
    """A network without its top, global average pooling, and one linear layer.

    Args:
        features: (N, 3, H, W) to (N, num_features, h, w).
        num_features: channels of the features.
        num_classes: number of classes.
    """

    def __init__(self, features: nn.Module, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.features = features
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.predictions = nn.Linear(num_features, num_classes)
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3, H, W) to logits, (N, classes)."""
        logits: Tensor = self.predictions(self.avgpool(self.features(x)).flatten(1))
        return logits


class RegularizedOutputs(NamedTuple):
    """Outputs in training: logits, (N, classes), and the scalar that the regularizers add to the loss."""

    logits: Tensor
    penalty: Tensor


class RegularizedDense(nn.Module):
    """Linear layer and ReLU, with the regularizers of Vo's models A and B."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_inputs, num_outputs)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs) to (N, outputs)."""
        outputs: Tensor = self.relu(self.linear(x))
        return outputs

    def penalty(self, outputs: Tensor) -> Tensor:
        """L1 and L2 of the weights, L2 of the biases, and L2 of the outputs, which Keras averages over the batch."""
        weight, bias = self.linear.weight, self.linear.bias
        of_weights = 1e-5 * weight.abs().sum() + 1e-4 * weight.square().sum()
        # Outputs may be 16 bits wide, in which squares run over.
        of_outputs = 1e-5 * outputs.float().square().sum() / len(outputs)
        return of_weights + 1e-4 * bias.square().sum() + of_outputs


@dataclass(kw_only=True)
class RegularizedClassification(ImageClassification):
    """Image classification whose model gives `RegularizedOutputs` in training and logits in inference."""

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        """Return the cross-entropy of the logits against the labels; in training with the regularizers' penalty."""
        if isinstance(outputs, RegularizedOutputs):
            return functional.cross_entropy(outputs.logits, batch[1]) + outputs.penalty
        return functional.cross_entropy(outputs, batch[1])


class Published(NamedTuple):
    """How a form of a model was published: side length in pixels, batch size and number of classes."""

    input_size: int
    batch_size: int
    num_classes: int


@dataclass(kw_only=True)
class PublishedForms(RegularizedClassification):
    """A model whose variants were each published with sizes of their own."""

    published: dict[str, Published]
    """By variant."""

    def prepare(self, variant: str | None = None) -> Self:
        """Return a copy in the requested variant, with its published batch size."""
        prepared = super().prepare(variant)
        return replace(prepared, default_batch_size=self.published[prepared.variant].batch_size)

    @property
    def default_input_size(self) -> int:
        """Side length in pixels that the variant was published with."""
        return self.published[self.variant].input_size

    @property
    def num_synthetic_classes(self) -> int:
        """Number of classes that the variant was published with."""
        return self.published[self.variant].num_classes
