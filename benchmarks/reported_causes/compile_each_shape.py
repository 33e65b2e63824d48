"""A compiled network is compiled again for each new length of its inputs.

Report: pytorch/pytorch, issue 105279.
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))


class Net(nn.Module):
    """Convolutions over sequences."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(32, 32, 3, padding=1) for _ in range(12))
        self.out = nn.Linear(32, 4)

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.out(x.mean(2))


torch.manual_seed(0)
model = Net()
compiled = torch.compile(model, backend="aot_eager", dynamic=REMEDY)
optimizer = torch.optim.SGD(model.parameters(), 0.05)
start = time.perf_counter()
for step in range(160):
    sequences, labels = torch.randn(16, 32, 64 + 8 * (step // 20)), torch.randint(0, 4, (16,))
    optimizer.zero_grad()
    loss = F.cross_entropy(compiled(sequences), labels)
    loss.backward()
    optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
