"""Steps of small training programs, each of which marks its phase."""

from collections.abc import Iterator
from typing import Any

import torch
from sleepy import SleepyModel, SleepySGD, sleep, sleepy_loader
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from truth import Truth

NUM_ITERATIONS = 7
truth = Truth()


def batch(number: int) -> tuple[Tensor, Tensor]:
    """A batch that is made by hand."""
    with truth("data"):
        sleep("data")
        return torch.full((1, 4), number / 10), torch.tensor([number % 3])


def loaded() -> Iterator[tuple[Tensor, Tensor]]:
    return truth.batches(sleepy_loader(NUM_ITERATIONS))


def forward(model: nn.Module, *inputs: Any) -> Any:
    with truth("forward"):
        return model(*inputs)


def loss_by_hand(outputs: Tensor, y: Tensor) -> Tensor:
    with truth("loss"):
        sleep("loss")
        return (outputs[0, y] - 1).pow(2).mean()


def backward(loss: Tensor, **options: Any) -> None:
    with truth("backward"):
        loss.backward(**options)


def step(optimizer: Any) -> None:
    with truth("update"):
        optimizer.step()
        optimizer.zero_grad()


def train(optimizer: Any, outputs: Tensor, y: Tensor) -> None:
    """The rest of an iteration after the forward."""
    with truth("loss"):
        loss = functional.cross_entropy(outputs, y)
    backward(loss)
    step(optimizer)
    print(f"{loss.item():.6f}")


def other() -> None:
    with truth("other"):
        sleep("data")


def new() -> tuple[SleepyModel, SleepySGD]:
    model = SleepyModel()
    return model, SleepySGD(model.parameters(), lr=0.1)


def evaluate(model: nn.Module) -> None:
    """Evaluate a full batch, without a loader."""
    model.eval()
    truth.begin("infer")
    with torch.no_grad():
        print(forward(model, torch.ones(1, 4)).argmax().item())
    model.train()


def functional_forward(model: nn.Module, weights: dict[str, Tensor], x: Tensor) -> Tensor:
    with truth("forward"):
        outputs: Tensor = functional_call(model, weights, (x,))
        return outputs
