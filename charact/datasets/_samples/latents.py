"""Labelled latents of images, as a PyTorch dataset."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from charact.datasets._common.registry import stored_content
from charact.datasets._samples.images import SyntheticImages

if TYPE_CHECKING:
    from charact.datasets._common.request import DataRequest

NUM_CHANNELS = 4
PIXELS = 8
"""Side in pixels of the part of an image that one position of the latents encodes."""


class SyntheticLatents(SyntheticImages):
    """Noise latents (float32 (4, side, side), normally distributed) with a label.

    Their size is that of the latents of Stable Diffusion's variational autoencoder; no image is encoded.
    """

    def draw(self, number: int) -> Tensor:
        """Return the latents with a number."""
        generator = np.random.default_rng((self.seed, number))
        return torch.from_numpy(generator.standard_normal((NUM_CHANNELS, self.input_size, self.input_size), np.float32))


def latent_dataset(request: "DataRequest", *, input_size: int, num_synthetic_classes: int) -> SyntheticLatents:
    """Return latents of images of `input_size` pixels; only synthetic ones exist.

    `num_synthetic_classes` is the default number of classes.
    """
    stored_content(request, "latent")  # raises for stored data sets: none has latents
    return SyntheticLatents(request.seed, request.split, input_size // PIXELS,
                            request.synthetic.num_classes or num_synthetic_classes)
