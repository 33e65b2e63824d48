"""Made-up data, where the cost matters and the content does not: pictures of uniform noise; text is in `_text`."""

import numpy as np
from numpy.typing import NDArray

from charact.data._spec import DatasetSpec, Split

NUM_PICTURES: dict[Split, int] = {"train": 50_000, "valid": 10_000, "test": 10_000}
"""As many as CIFAR-10 has."""
_SPLIT_SEEDS: dict[Split, int] = {"train": 0, "test": 1, "valid": 2}


def make_picture(
    seed: int, split: Split, index: int, input_size: int, num_classes: int
) -> tuple[NDArray[np.float32], int]:
    """Picture (3, size, size), uniform in [0, 1), and its label; a function of the arguments alone."""
    generator = np.random.default_rng((seed, index, _SPLIT_SEEDS[split]))
    picture = generator.random((3, input_size, input_size), dtype=np.float32)
    return picture, int(generator.integers(num_classes))


DATASETS = [
    DatasetSpec(
        name="synthetic", kind=None, splits=("train", "valid", "test"), source="seeded random numbers",
        description="pictures of uniform noise with random labels; text of Zipf-distributed words",
    ),
]
