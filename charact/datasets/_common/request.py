"""What a case asks of its data set."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Synthetic:
    """What made-up data look like, where it differs from the workload's default (None)."""

    num_classes: int | None = None
    """Kinds of pictures."""
    num_words: int | None = None
    """Size of the vocabulary, marks included; of both languages in translation."""
    zipf_exponent: float = 1.0
    """Word number k is as probable as k ** -exponent; 0 makes all alike."""
    length_mean_frac: float | None = None
    """Mean length of sentences or documents, as a share of the input size."""
    length_spread_frac: float | None = None
    """Standard deviation of their length, likewise; 0 makes all alike."""


@dataclass(frozen=True)
class DataRequest:
    """Which data a case is fed: a dataset's name, where its files are, and the seed of what is made up.

    The batch size is for text that is cut into as many parallel streams; samples do not depend on it otherwise.
    """

    name: str = "synthetic"
    directory: Path | None = None
    split: Literal["train", "valid", "test"] = "train"
    seed: int = 0
    batch_size: int = 1
    synthetic: Synthetic = Synthetic()
