"""Gradients have become so small that Adam's second moments are denormal: their square roots are slow."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from marks import mark

REMEDY = bool(os.environ.get("REMEDY"))

torch.manual_seed(0)
torch.set_num_threads(1)
mark("imports")
if REMEDY:
    torch.set_flush_denormal(True)
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
optimizer = torch.optim.Adam(model.parameters(), 1e-4)
x, y = torch.randn(32, 256), torch.randint(0, 10, (32,))
for _ in range(100):
    optimizer.zero_grad()
    out = model(x)
    mark("forward")
    loss = F.cross_entropy(out, y) * 1e-16  # as late in training: gradients of 1e-20
    loss.backward()
    mark("loss and backward")
    optimizer.step()
    mark("update")
if os.environ.get("TRUTH"):
    moments = torch.cat([state["exp_avg_sq"].flatten() for state in optimizer.state.values()])
    denormal = (moments > 0) & (moments < torch.finfo(torch.float32).tiny)
    print(f"TRUTH {denormal.float().mean():.0%} of the second moments are denormal")
