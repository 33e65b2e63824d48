"""Models that can be captured, and then fail as they like."""

import torch
from torch import Tensor, nn

fails = False
"""Whether `Fickle` fails by now."""


class Fickle(nn.Module):
    """Goes well until it is told not to."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if fails:
            raise ZeroDivisionError("by zero")
        return torch.relu(self.linear(x))


class Leaves(nn.Module):
    """Ends the program."""

    def forward(self, x: Tensor) -> Tensor:
        raise SystemExit(3)
