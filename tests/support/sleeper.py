"""A workload whose phases each sleep a known time: the truth that the timing pass is checked against."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from charact.datasets._common.request import DataRequest
from charact.workload.base import Workload

SLEEPS_S = {"data": 0.012, "forward": 0.021, "loss": 0.007, "backward": 0.034, "update": 0.016}

_slept: dict[str, list[float]] = defaultdict(list)


def sleep(phase: str) -> None:
    """Sleep as long as that phase does, and note how long it took: longer where a core is not free at the end."""
    begun = time.perf_counter()
    time.sleep(SLEEPS_S[phase])
    _slept[phase].append(time.perf_counter() - begun)


@contextmanager
def slept() -> Iterator[dict[str, list[float]]]:
    """How long each phase slept each time within the block, by a clock of its own: phase -> seconds."""
    _slept.clear()
    yield _slept


class SleepyData(Dataset):
    num_classes = 2

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        sleep("data")
        return torch.zeros(1), 0


class _SleepInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        sleep("backward")
        return grad


class _SleepySGD(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:
        sleep("update")
        super().step()


@dataclass(kw_only=True)
class Sleeper(Workload):
    """Batch size 1, or the data phase sleeps that many times."""

    name: str = "sleeper"
    source: str = "known sleeps"
    input_kind: str = "image"
    default_batch_size: int = 1
    default_input_size: int = 1
    smallest_input_size: int = 1

    def dataset(self, input_size: int, request: DataRequest) -> SleepyData:
        return SleepyData()

    def model(self, dataset: Any) -> nn.Module:
        return nn.Linear(1, 1)

    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        sleep("forward")
        return _SleepInBackward.apply(model(batch[0]))

    def loss(self, outputs: Tensor, batch: Any) -> Tensor:
        sleep("loss")
        return outputs.mean()

    def optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        return [_SleepySGD(model.parameters(), lr=0.1)]


WORKLOADS = [Sleeper()]
