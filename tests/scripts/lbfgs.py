"""An optimizer that computes the loss anew as often as it needs, through a closure: an iteration is one step."""

import torch
from sleepy import SleepyModel, sleep, sleepy_loader
from torch import Tensor
from torch.nn import functional
from truth import Truth


class SleepyLBFGS(torch.optim.LBFGS):
    def step(self, closure):
        sleep("update")
        return super().step(closure)


truth = Truth()
model = SleepyModel()
optimizer = SleepyLBFGS(model.parameters(), lr=0.1, max_iter=2)
for x, y in truth.batches(sleepy_loader(5)):

    def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
        optimizer.zero_grad()
        with truth("forward"):
            outputs = model(x)
        with truth("loss"):
            loss = functional.cross_entropy(outputs, y)
        with truth("backward"):
            loss.backward()
        return loss

    with truth("update"):
        loss = optimizer.step(closure)
    print(f"{loss.item():.6f}")
truth.write()
