"""Requested data of a case."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Synthetic:
    """Options of synthetic data; None for the workload's default."""

    num_classes: int | None = None
    """Number of image classes."""
    num_words: int | None = None
    """Size of the vocabulary, including special tokens; of both languages in translation."""
    zipf_exponent: float = 1.0
    """The probability of word k is proportional to k ** -exponent; 0 is uniform."""
    length_mean_frac: float | None = None
    """Mean length of sentences or documents, as a share of the input size."""
    length_spread_frac: float | None = None
    """Standard deviation of their length, as a share of the input size; 0 gives equal lengths."""


@dataclass(frozen=True)
class DataRequest:
    """Data of a case: the data set's name, the directory of its files, and the seed of synthetic data.

    The batch size is the number of parallel streams of text; other samples do not depend on it.
    """

    name: str = "synthetic"
    directory: Path | None = None
    split: Literal["train", "valid", "test"] = "train"
    seed: int = 0
    batch_size: int = 1
    synthetic: Synthetic = Synthetic()
