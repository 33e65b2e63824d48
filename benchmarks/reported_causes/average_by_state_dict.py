"""The moving average of the weights makes new tensors for the whole state in each step.

Report: pytorch/pytorch, pull request 94820.
"""

import copy
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))


class Average:
    """Exponential moving average of a model's state."""

    def __init__(self, model, decay):
        self.decay, self.state = decay, copy.deepcopy(model.state_dict())

    @torch.no_grad()
    def update(self, model):
        if REMEDY:
            torch._foreach_lerp_(list(self.state.values()), list(model.state_dict().values()), 1 - self.decay)
        else:
            current = copy.deepcopy(model).state_dict()
            self.state = {name: self.decay * mean + (1 - self.decay) * current[name]
                          for name, mean in self.state.items()}


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(),
                      nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.05)
average = Average(model, 0.999)
inputs, labels = torch.randn(4096, 256), torch.randint(0, 10, (4096,))
start = time.perf_counter()
for _ in range(120):
    chosen = torch.randint(0, 4096, (128,))
    loss = F.cross_entropy(model(inputs[chosen]), labels[chosen])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.update(model)
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
