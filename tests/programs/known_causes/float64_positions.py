"""A NumPy table of positions turns the activations into float64 for half of the forward pass."""

import os

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from marks import mark

REMEDY = bool(os.environ.get("REMEDY"))

torch.manual_seed(0)
positions = torch.from_numpy(np.sin(np.arange(256)[:, None] / 10000 ** (np.arange(256)[None] / 256)))
if REMEDY:
    positions = positions.float()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(256, 256), nn.Linear(256, 256)

    def forward(self, x):
        h = x + positions  # float64 from here
        h = F.gelu(h) * torch.sigmoid(h)
        h = F.softmax(h, dim=-1)
        h = F.layer_norm(h, (256,))
        return self.b(F.relu(self.a(h.float())))


model = nn.Sequential(Block(), Block(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
x, y = torch.randn(12, 256, 256), torch.randint(0, 10, (12,))
mark("imports")
for _ in range(60):
    optimizer.zero_grad()
    out = model(x).mean(1)
    mark("forward")
    loss = F.cross_entropy(out, y)
    loss.backward()
    mark("backward")
    optimizer.step()
    mark("update")
