"""Made-up data, where the cost matters and the content does not: pictures of uniform noise; text is in `_text`."""

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
"""Words of `--synthetic` and the fields of `Synthetic` that they set."""
KEYS_READ: dict[Kind, tuple[str, ...]] = {
    "image": ("classes",), "language_model": ("vocabulary", "zipf"),
    "translation": ("vocabulary", "zipf", "length-mean", "length-spread"),
    "cloze": ("vocabulary", "zipf", "length-mean", "length-spread"),
}  # fmt: skip
"""Those that made-up data of a kind heed."""

NUM_PICTURES: dict[Split, int] = {"train": 50_000, "valid": 10_000, "test": 10_000}
"""As many as CIFAR-10 has."""
_SPLIT_SEEDS: dict[Split, int] = {"train": 0, "test": 1, "valid": 2}


def check_synthetic(synthetic: "Synthetic", kind: Kind) -> None:
    """Refuse what made-up data of a kind do not heed.

    Raises:
        UserError: such a field differs from its default.
    """
    names = {field: key for key, field in KEYS.items()}
    for field in fields(synthetic):
        key = names[field.name]
        if key not in KEYS_READ[kind] and getattr(synthetic, field.name) != field.default:
            raise UserError(f"--synthetic {key} means nothing to {kind.replace('_', ' ')} data, only "
                            f"{', '.join(KEYS_READ[kind])}: leave it out")


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
