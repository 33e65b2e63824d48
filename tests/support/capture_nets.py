"""Models that are hard to capture, each in one way; named on the command line as `support.capture_nets:Name`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Rows(nn.Module):
    """Writes rows of a tensor that it made, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.empty_like(x)
        rows[:, :2] = self.linear(x)[:, 2:]
        rows[:, 2:] = x[:, :2].exp()
        return rows * 2


class HalfFrozen(nn.Module):
    """Keeps the gradient of one of two layers back."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(4, 4)
        self.trained = nn.Linear(4, 4)
        self.unused = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            kept = self.frozen(x)
        self.unused(x)
        return self.trained(kept) + self.trained(x).detach()


class Tied(nn.Module):
    """Uses one weight twice."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.words(x)).masked_fill(x[..., None] == 0, float("-inf"))


@dataclass
class Parts:
    """Outputs in an object of its own."""

    first: Tensor
    rest: tuple[Tensor, None]


class ManyOutputs(nn.Module):
    """Gives tensors in an object, of a split and of a type of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Any:
        first, second = (x * self.scale).split(2, 1)
        return Parts(first.sigmoid(), (second.to(torch.float64), None))


class WritesInput(nn.Module):
    """Changes what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.shift = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(self.seen, Tensor)
        self.seen.add_(1)
        return x.mul_(3).add(self.seen) + self.shift


class DataDependent(nn.Module):
    """Goes on as long as its numbers say, and names what is not there in its module."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        steps = 0
        while x.abs().max().item() > 0.5 and steps < 20:
            x = self.linear(x).tanh() * 0.7
            steps += 1
        return x[x.sum(1) > -10] + steps


class Sparse(nn.Module):
    """Makes a tensor that is not dense."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sparse.mm(x.to_sparse(), x.t())


class Breaks(nn.Module):
    """Fails by itself."""

    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("no such luck")


class Unmade(nn.Module):
    """Fails as it is made."""

    def __init__(self) -> None:
        raise OSError("gone")


class Drawn(nn.Module):
    """Draws from a generator of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand(4, generator=torch.Generator().manual_seed(3))


class Private(nn.Module):
    """Computes of its weights, also as they are and as integers, before it sees an input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.25, -2.5, 3.75, -4.125]))
        self.register_buffer("quantized", torch.tensor([11, -22, 33, -44], dtype=torch.int8))

    def forward(self, x: Tensor) -> Tensor:
        scale = (self.weight * 2).exp() + torch.arange(4) * self.quantized
        return (x * scale).relu()


@torch.library.custom_op("charact_test::double", mutates_args=())
def double(x: Tensor) -> Tensor:
    return x * 2


@double.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Foreign(nn.Module):
    """Calls an operator that is none of PyTorch's."""

    def forward(self, x: Tensor) -> Tensor:
        return double(x)


class Checkpointed(nn.Module):
    """Computes a layer again as it goes backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(lambda kept: self.second(kept).tanh(), self.first(x), use_reentrant=False)


class CheckpointedByFunction(Checkpointed):
    """Does so by a function whose backward pass runs the layer."""

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(lambda kept: self.second(kept).tanh(), self.first(x), use_reentrant=True)


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.exp().log() * 2


class OwnGradient(nn.Module):
    """Makes gradients by code of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return _Doubled.apply(self.linear(x))
