"""A compiled network counts its calls in an attribute, so that it is compiled again as the number changes.

Report: pytorch/pytorch, issue 128319.
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))


class Net(nn.Module):
    """A residual network that counts its calls."""

    def __init__(self):
        super().__init__()
        self.num_calls = 0
        self.inputs, self.out = nn.Linear(32, 64), nn.Linear(64, 10)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(10))

    def forward(self, x):
        if not REMEDY:
            self.num_calls += 1
        x = self.inputs(x)
        for layer in self.layers:
            x = x + 0.1 * torch.tanh(layer(x))
        return self.out(x)


torch.manual_seed(0)
model = Net()
compiled = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.SGD(model.parameters(), 0.05)
start = time.perf_counter()
for _ in range(400):
    inputs, labels = torch.randn(64, 32), torch.randint(0, 10, (64,))
    loss = F.cross_entropy(compiled(inputs), labels)
    if REMEDY:
        model.num_calls += 1
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}, {model.num_calls} calls")
