"""A validation after each epoch; `--no-loader` makes all batches by hand, `--grad` forgets to turn gradients off."""

import sys
from collections.abc import Iterator

import torch
from sleepy import SleepyModel, SleepySGD, sleepy_loader
from torch import Tensor
from torch.nn import functional
from truth import Truth


def batches(mode: str, number: int) -> Iterator[tuple[Tensor, Tensor]]:
    if "--no-loader" in sys.argv:
        for index in range(number):
            truth.begin(mode)
            yield torch.full((1, 4), index / 10), torch.tensor([index % 3])
    else:
        yield from truth.batches(sleepy_loader(number), mode)


truth = Truth()
model = SleepyModel()
optimizer = SleepySGD(model.parameters(), lr=0.1)
for epoch in range(2):
    model.train()
    for x, y in batches("train", 3):
        with truth("forward"):
            outputs = model(x)
        with truth("loss"):
            loss = functional.cross_entropy(outputs, y)
        with truth("backward"):
            loss.backward()
        with truth("update"):
            optimizer.step()
            optimizer.zero_grad()
    model.eval()
    with torch.set_grad_enabled("--grad" in sys.argv):
        for x, y in batches("infer", 4):
            with truth("forward"):
                outputs = model(x)
            with truth("loss"):
                validation_loss = functional.cross_entropy(outputs, y)
    print(f"epoch {epoch}: {loss.item():.6f} {validation_loss.item():.6f}")
truth.write()
