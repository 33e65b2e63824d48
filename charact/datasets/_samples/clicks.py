"""Impressions of advertisements, and whether they were clicked, as a PyTorch dataset."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from charact.datasets._common.registry import stored_content
from charact.datasets.synthetic import NUM_PICTURES

if TYPE_CHECKING:
    from charact.datasets._common.request import DataRequest

_MOST_LOOKUPS = 2**22
"""Largest number of rows to draw; samples beyond them repeat."""
_UPPER_QUARTILE = 0.674
"""Of the standard normal distribution."""
_SPLIT_SEEDS = {"train": 0, "test": 1, "valid": 2}


class SyntheticClicks(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """Samples (float32 (dense features,), int64 (tables, lookups), float32 ()): features, rows, and the label.

    Dense features are normally distributed. The rows of each table follow Zipf's law. The label is 1 if the first
    dense feature is in the upper quartile: about as often as in Criteo's data.
    """

    def __init__(self, request: "DataRequest", num_rows: Sequence[int], num_dense: int, num_lookups: int) -> None:
        self.num_rows = tuple(num_rows)
        self._num_samples = NUM_PICTURES[request.split]
        num_drawn = max(2, min(self._num_samples, _MOST_LOOKUPS // (len(num_rows) * max(1, num_lookups))))
        generator = np.random.default_rng((request.seed, _SPLIT_SEEDS[request.split]))
        # Arrays, because the FLOP pass reads the dataset under fake tensors.
        self._dense = generator.standard_normal((num_drawn, num_dense), np.float32)
        self._rows = zipf_rows(generator.random((num_drawn, len(num_rows), num_lookups)),
                               np.array(num_rows)[:, None], request.synthetic.zipf_exponent)

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = index % len(self._dense)
        dense = torch.from_numpy(self._dense[number])
        return dense, torch.from_numpy(self._rows[number]), (dense[0] > _UPPER_QUARTILE).float()


def zipf_rows(uniform: NDArray[np.float64], num_rows: NDArray[np.int64], exponent: float) -> NDArray[np.int64]:
    """Return rows from 0 to `num_rows` - 1, row k with a probability about proportional to (k + 1) ** -exponent.

    *Error*: the probability is that of a continuous power law between k + 1 and k + 2, of which no table is needed.
    """
    end = num_rows + 1.0
    power = 1 - exponent
    drawn = end**uniform if power == 0 else ((end**power - 1) * uniform + 1) ** (1 / power)
    rows: NDArray[np.int64] = np.minimum(drawn.astype(np.int64), num_rows) - 1
    return rows


def click_dataset(request: "DataRequest", *, num_rows: Sequence[int], num_dense: int, num_lookups: int
                  ) -> SyntheticClicks:
    """Return impressions with a number of lookups in each table; only synthetic ones exist."""
    stored_content(request, "click")  # raises for stored data sets: none has clicks
    return SyntheticClicks(request, num_rows, num_dense, num_lookups)
