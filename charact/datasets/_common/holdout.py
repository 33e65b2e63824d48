"""Splitting of a validation set from training data, for data sets without one."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from charact.core.errors import UserError


class Part(Dataset[Any]):
    """A subset of a dataset, in order; other attributes are those of the dataset."""

    def __init__(self, dataset: Dataset[Any], indices: NDArray[np.int64]) -> None:
        self._dataset = dataset
        # An array, because forked workers share it: counting references to a list's items copies its memory.
        self._indices = indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._dataset[int(self._indices[index])]

    def __getattr__(self, name: str) -> Any:
        # Special methods would apply to the whole dataset, and an object being unpickled has no `_dataset` yet.
        if name.startswith("__") or name == "_dataset":
            raise AttributeError(name)
        return getattr(self._dataset, name)


def hold_out(dataset: Dataset[Any], frac: float, seed: int, batch_size: int) -> tuple[Part, Part]:
    """Return the rest of a dataset, and a held-out share of about `frac` of its samples.

    Held-out samples are drawn at random with the seed. If the order of samples matters (`shuffled = False`), they are
    the last ones, and the rest is a whole number of batches.
    """
    num_samples = len(dataset)  # type: ignore[arg-type]
    in_order = not getattr(dataset, "shuffled", True)
    num_rest = num_samples - round(frac * num_samples)
    if in_order:
        num_rest = round(num_rest / batch_size) * batch_size
    if min(num_rest, num_samples - num_rest) < batch_size:
        raise UserError(f"holding out {frac:g} of {num_samples:,} samples leaves parts of {num_rest:,} and "
                        f"{num_samples - num_rest:,}, fewer than a batch of {batch_size:,}: choose another share or a "
                        "smaller batch size")
    order = np.arange(num_samples) if in_order else np.random.default_rng(seed).permutation(num_samples)
    return Part(dataset, np.sort(order[:num_rest])), Part(dataset, np.sort(order[num_rest:]))
