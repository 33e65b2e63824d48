"""Holding a part of a dataset out of training, for validation where no split for it was published."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from charact.core.errors import UserError


class Part(Dataset[Any]):
    """Some samples of a dataset, in their order; every other attribute is the dataset's own.

    Args:
        dataset: has all samples.
        indices: of those that are in the part.
    """

    def __init__(self, dataset: Dataset[Any], indices: NDArray[np.int64]) -> None:
        self._dataset = dataset
        # An array, not a list: forked workers share it, and do not copy it by counting references.
        self._indices = indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._dataset[int(self._indices[index])]

    def __getattr__(self, name: str) -> Any:
        # Special methods would speak of the whole dataset, and a copy that is being unpickled has no dataset yet.
        if name.startswith("__") or name == "_dataset":
            raise AttributeError(name)
        return getattr(self._dataset, name)


def hold_out(dataset: Dataset[Any], frac: float, seed: int, batch_size: int) -> tuple[Part, Part]:
    """The rest of a dataset, and about a share `frac` of its samples that is held out; together they are all of it.

    They are drawn at random, as the seed decides; where the samples' order is part of the data (`shuffled = False`)
    they are its end, and the rest is a whole number of batches.

    Raises:
        UserError: either part would be smaller than a batch.
    """
    num_samples = len(dataset)  # type: ignore[arg-type]
    in_order = not getattr(dataset, "shuffled", True)
    num_rest = num_samples - round(frac * num_samples)
    if in_order:
        num_rest = round(num_rest / batch_size) * batch_size
    if min(num_rest, num_samples - num_rest) < batch_size:
        raise UserError(f"holding out {frac:g} of {num_samples:,} samples leaves {num_rest:,} and "
                        f"{num_samples - num_rest:,}, fewer than a batch of {batch_size:,}: choose another share or a "
                        "smaller batch size")
    order = np.arange(num_samples) if in_order else np.random.default_rng(seed).permutation(num_samples)
    return Part(dataset, np.sort(order[:num_rest])), Part(dataset, np.sort(order[num_rest:]))
