"""Twenty steps of a large model: nothing is wrong but that the program is short."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from marks import mark

torch.manual_seed(0)
mark("imports")
model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
x, y = torch.randn(256, 1024), torch.randint(0, 10, (256,))
for _ in range(20):
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    mark("forward and backward")
    optimizer.step()
    mark("update")
    optimizer.zero_grad()
    mark("zero_grad")
if os.environ.get("TRUTH"):
    num_bytes = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    print(f"TRUTH weights {num_bytes / 2**20:.1f} MiB, gradients the same, state {2 * num_bytes / 2**20:.1f} MiB")
