"""Workloads that each have one bottleneck, small enough for a second of measuring."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from charact.datasets._common.request import DataRequest
from charact.workload.base import Workload

NUM_SAMPLES = 4096
_ONE_OUTPUT = partial(nn.Linear, out_features=1)


@dataclass(kw_only=True)
class Bound(Workload):
    """A model over samples of `input_size` numbers."""

    name: str = "bound"
    source: str = "by hand"
    input_kind: str = "image"
    default_batch_size: int = 8
    default_input_size: int = 64
    smallest_input_size: int = 1
    network: Callable[[int], nn.Module] = _ONE_OUTPUT
    per_sample: Callable[[], object] | None = None
    """Called for each sample that is loaded."""
    optimizer: Any = torch.optim.Adam

    def dataset(self, input_size: int, request: DataRequest) -> Dataset[Any]:
        return _Samples(input_size, self.per_sample)

    def model(self, dataset: Any) -> nn.Module:
        return self.network(dataset.num_features)

    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        return model(batch)

    def loss(self, outputs: Tensor, batch: Any) -> Tensor:
        return outputs.sum()

    def optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        return [self.optimizer(model.parameters(), lr=1e-3)]


class _Samples(Dataset[Tensor]):
    def __init__(self, num_features: int, per_sample: Callable[[], object] | None) -> None:
        self.num_features = num_features
        self._sample = torch.ones(num_features)
        self._per_sample = per_sample

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> Tensor:
        if self._per_sample is not None:
            self._per_sample()
        return self._sample


class ManyTinyOperators(nn.Module):
    """Python calls 600 operators, each on a few numbers."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_features))

    def forward(self, numbers: Tensor) -> Tensor:
        for _ in range(300):
            numbers = (numbers + 1.0) * 0.5
        return numbers * self.weight


class Product(nn.Module):
    """One matrix product; `host_s` is how long each took, by a clock of its own."""

    def __init__(self, num_features: int, num_outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_features, num_outputs))
        self.host_s: list[float] = []

    def forward(self, numbers: Tensor) -> Tensor:
        begun_s = time.perf_counter()
        product = torch.mm(numbers, self.weight)
        self.host_s.append(time.perf_counter() - begun_s)
        return product


class LargeElementwise(nn.Module):
    """A few pointwise operators over 64 MB, which no cache holds."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16 * 2**20))

    def forward(self, numbers: Tensor) -> Tensor:
        return (self.weight + 1.0).mul_(0.5).add_(numbers[0, 0])


def decode() -> int:
    return sum(number * number for number in range(10_000))
