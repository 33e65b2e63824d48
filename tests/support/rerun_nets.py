"""Own models that a process of its own can import again: small, with products of known size, or broken."""

import os
import signal
from typing import Any

import torch
from torch import Tensor, nn

WIDTH = 64


class Product(nn.Module):
    """One matrix product: an input of S features to 64 outputs."""

    def __init__(self, features: int = 32) -> None:
        super().__init__()
        self.linear = nn.Linear(features, WIDTH, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(inputs)


class Wide(nn.Module):
    """A product that takes longer than some samples."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(512, 1024, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(inputs)


class NoMemory(Product):
    """Asks for more memory than there is, in another process than the tests'."""

    def forward(self, inputs: Tensor) -> Tensor:
        if os.environ.get("TESTS_PROCESS") != str(os.getpid()):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return super().forward(inputs)


class Killed(Product):
    """Ends another process than the tests' as a fault in a library does."""

    def forward(self, inputs: Tensor) -> Tensor:
        if os.environ.get("TESTS_PROCESS") != str(os.getpid()):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(inputs)


def squared(outputs: Any) -> Tensor:
    return outputs.square().mean()
