"""A dataset, a model, a loss and an optimizer that sleep, each for a time of its own."""

import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

SLEEPS_S = {"data": 0.02, "forward": 0.03, "loss": 0.01, "backward": 0.04, "update": 0.02}


def sleep(phase: str) -> None:
    time.sleep(SLEEPS_S[phase])


class SleepyData(Dataset[Any]):
    """Samples of 4 features in 3 classes; each is slept for."""

    def __init__(self, num_samples: int) -> None:
        self._num_samples = num_samples

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        sleep("data")
        return torch.full((4,), index / 10), index % 3


def sleepy_loader(num_batches: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(SleepyData(num_batches), batch_size=1, **options)


class _SleepInBackward(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept; `torch.func` requires it."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        sleep("backward")
        return grad


def slow_backward(x: Tensor) -> Tensor:
    return _SleepInBackward.apply(x)


class SleepyModel(nn.Module):
    """A linear layer that sleeps in its forward and in its backward."""

    def __init__(self, num_inputs: int = 4, num_outputs: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(num_inputs, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        sleep("forward")
        return slow_backward(self.linear(x))


class SleepySGD(torch.optim.SGD):
    """SGD that sleeps in its step."""

    def step(self, closure: Any = None) -> None:
        sleep("update")
        super().step(closure)
