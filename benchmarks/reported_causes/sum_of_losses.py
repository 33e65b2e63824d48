"""The losses of an epoch are summed as tensors, so that the sum holds the graphs of all steps.

Report: horovod/horovod, pull request 641 (also google/brax, pull request 152).
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))

torch.manual_seed(0)
layers = [layer for _ in range(60) for layer in (nn.Linear(32, 32), nn.LayerNorm(32), nn.Tanh())]
model = nn.Sequential(*layers, nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
total_loss = 0
start = time.perf_counter()
for _ in range(600):
    inputs, labels = torch.randn(16, 32), torch.randint(0, 10, (16,))
    loss = F.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total_loss += loss.detach() if REMEDY else loss
print(f"loop: {time.perf_counter() - start:.3f} s, mean loss {float(total_loss) / 600:.3f}")
