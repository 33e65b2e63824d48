"""Deep learning recommendation model (DLRM): predicts clicks from dense features and lookups in large tables.

Source: Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems", 2019,
section 2; sizes and settings of the Criteo Kaggle benchmark of facebookresearch/dlrm (`bench/dlrm_s_criteo_kaggle.sh`).
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from charact.datasets._samples.clicks import click_dataset
from charact.workload import DataRequest, Workload
from charact.workload.metrics import BinaryAccuracy, Metric

NUM_DENSE = 13
WIDTH = 16
"""Width of the rows of the tables, and of the bottom network's output."""
BOTTOM, TOP = (512, 256, 64, WIDTH), (512, 256)
ROWS = (1460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5683, 8_351_593, 3194, 27, 14_992, 5_461_306,
        10, 5652, 2173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572)
"""Distinct values of the sparse features of Criteo's Kaggle data."""
MOST_ROWS = {"tiny": 10_000, "kaggle": max(ROWS)}
"""Largest number of rows of a table, by variant."""


def _network(num_inputs: int, widths: tuple[int, ...]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, width in zip((num_inputs, *widths), widths, strict=False):
        linear = nn.Linear(before, width)
        nn.init.normal_(linear.weight, std=math.sqrt(2 / (before + width)))
        nn.init.normal_(linear.bias, std=math.sqrt(1 / width))
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers)


class DLRM(nn.Module):
    """Two pointwise networks around the dot products of all pairs of features."""

    first: Tensor
    second: Tensor

    def __init__(self, num_rows: tuple[int, ...]) -> None:
        super().__init__()
        self.bottom = _network(NUM_DENSE, BOTTOM)
        self.tables = nn.ModuleList(nn.EmbeddingBag(
            rows, WIDTH, mode="sum", sparse=True,
            _weight=torch.empty(rows, WIDTH).uniform_(-math.sqrt(1 / rows), math.sqrt(1 / rows))) for rows in num_rows)
        num_features = len(num_rows) + 1
        first, second = torch.tril_indices(num_features, num_features, offset=-1)
        self.register_buffer("first", first, persistent=False)
        self.register_buffer("second", second, persistent=False)
        self.top = _network(WIDTH + len(first), TOP)
        self.head = nn.Linear(TOP[-1], 1)

    def forward(self, dense: Tensor, rows: Tensor) -> Tensor:
        """Return logits (N,) of dense features (N, 13) and the rows to look up in each table (N, tables, lookups)."""
        features = self.bottom(dense)
        by_table = rows.transpose(0, 1).contiguous()  # one copy instead of one for each table
        sums = [table(of_table) for table, of_table in zip(self.tables, by_table, strict=True)]
        vectors = torch.stack([features, *sums], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.first, self.second]
        logits: Tensor = self.head(self.top(torch.cat((features, products), dim=1)))
        return logits.squeeze(1)


@dataclass(kw_only=True)
class DLRMWorkload(Workload):
    """DLRM for Criteo's Kaggle data: with tables of 10,000 rows at most, or with all 33,762,577 rows.

    The input size is the number of lookups in each table, whose rows are summed.
    """

    name: str = "dlrm"
    source: str = "Naumov et al., Deep Learning Recommendation Model, 2019"
    year: int | None = 2019
    input_kind: Literal["lookups"] = "lookups"
    default_batch_size: int = 128
    variants: tuple[str, ...] = tuple(MOST_ROWS)

    @property
    def default_input_size(self) -> int:
        """One lookup in each table: each sparse feature of Criteo's data has one value."""
        return 1

    @property
    def smallest_input_size(self) -> int:
        """One lookup."""
        return 1

    def dataset(self, input_size: int, request: DataRequest) -> Any:
        """Return impressions, (float32 (13,), int64 (26, size), float32 ())."""
        most = MOST_ROWS[self.variant]
        return click_dataset(request, num_rows=[min(rows, most) for rows in ROWS], num_dense=NUM_DENSE,
                             num_lookups=input_size)

    def model(self, dataset: Any) -> DLRM:
        """Return the network for the dataset's tables."""
        return DLRM(dataset.num_rows)

    def forward(self, model: nn.Module, batch: Any) -> Any:
        """Return the logits of clicks, (batch,)."""
        return model(*batch[:2])

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        """Return the binary cross-entropy."""
        return functional.binary_cross_entropy_with_logits(outputs, batch[2])

    def optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        """Return SGD with the published learning rate; gradients of the tables are sparse."""
        return [torch.optim.SGD(model.parameters(), lr=0.1)]

    def metrics(self, dataset: Any) -> list[Metric]:
        """Return the accuracy of the predicted clicks."""
        return [BinaryAccuracy()]


WORKLOADS = [DLRMWorkload()]
