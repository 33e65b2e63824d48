"""Synthetic images of uniform noise, and options of all synthetic data."""

import random
from dataclasses import fields
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from charact.core.errors import UserError
from charact.datasets._common.spec import DatasetSpec, Kind, Split

if TYPE_CHECKING:
    from charact.datasets._common.request import Synthetic

KEYS = {
    "classes": "num_classes", "vocabulary": "num_words", "zipf": "zipf_exponent", "length-mean": "length_mean_frac",
    "length-spread": "length_spread_frac",
}  # fmt: skip
"""Keys of `--synthetic` and the fields of `Synthetic` that they set."""
KEYS_READ: dict[Kind, tuple[str, ...]] = {
    "image": ("classes",), "language_model": ("vocabulary", "zipf"),
    "translation": ("vocabulary", "zipf", "length-mean", "length-spread"),
    "cloze": ("vocabulary", "zipf", "length-mean", "length-spread"),
    "segmentation": ("classes",), "latent": ("classes",), "click": ("zipf",),
}  # fmt: skip
"""Keys that apply to synthetic data of each kind."""

NUM_PICTURES: dict[Split, int] = {"train": 50_000, "valid": 10_000, "test": 10_000}
"""Number of images of each split, as in CIFAR-10."""
_SPLIT_SEEDS: dict[Split, int] = {"train": 0, "test": 1, "valid": 2}


def check_synthetic(synthetic: "Synthetic", kind: Kind) -> None:
    """Check that the options apply to synthetic data of a kind."""
    names = {field: key for key, field in KEYS.items()}
    for field in fields(synthetic):
        key = names[field.name]
        if key not in KEYS_READ[kind] and getattr(synthetic, field.name) != field.default:
            raise UserError(f"--synthetic {key} does not apply to {kind.replace('_', ' ')} data, only "
                            f"{', '.join(KEYS_READ[kind])}: leave it out")


def make_picture(seed: int, split: Split, number: int, input_size: int) -> NDArray[np.float32]:
    """Return an image (3, size, size), uniform in [0, 1); depends only on the arguments."""
    generator = np.random.default_rng((seed, number, _SPLIT_SEEDS[split]))
    return generator.random((3, input_size, input_size), dtype=np.float32)


def make_label(seed: int, split: Split, index: int, num_classes: int) -> int:
    """Return the label of an image, from 0 to `num_classes` - 1; depends only on the arguments."""
    return random.Random(f"{seed} {split} {index}").randrange(num_classes)


DATASETS = [
    DatasetSpec(
        name="synthetic", kind=None, splits=("train", "valid", "test"), source="seeded random numbers",
        description="images of uniform noise with random labels; Zipf-distributed words and clicks; masks; latents",
    ),
]
