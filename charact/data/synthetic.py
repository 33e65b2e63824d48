"""Made-up pictures: uniform noise with random labels, where the cost matters and the content does not."""

import numpy as np
from numpy.typing import NDArray

from charact.data._spec import ImageDatasetSpec, Split

NUM_PICTURES: dict[Split, int] = {"train": 50_000, "test": 10_000}
"""As many as CIFAR-10 has."""


def make_picture(
    seed: int, split: Split, index: int, input_size: int, num_classes: int
) -> tuple[NDArray[np.float32], int]:
    """Picture (3, size, size), uniform in [0, 1), and its label; a function of the arguments alone."""
    generator = np.random.default_rng((seed, index, 0 if split == "train" else 1))
    picture = generator.random((3, input_size, input_size), dtype=np.float32)
    return picture, int(generator.integers(num_classes))


DATASETS = [
    ImageDatasetSpec(
        name="synthetic", num_classes=None, source="seeded random numbers",
        description="uniform noise with random labels, drawn as it is fetched",
    ),
]
