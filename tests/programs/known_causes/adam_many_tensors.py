"""Adam updates 600 small parameters one by one."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from marks import mark

REMEDY = bool(os.environ.get("REMEDY"))

torch.manual_seed(0)
mark("imports")
layers = []
for _ in range(150):
    layers += [nn.Linear(16, 16), nn.LayerNorm(16)]
model = nn.Sequential(*layers, nn.Linear(16, 10))
optimizer = torch.optim.Adam(model.parameters(), fused=True if REMEDY else None)
x, y = torch.randn(16, 16), torch.randint(0, 10, (16,))
for _ in range(100):
    optimizer.zero_grad()
    out = model(x)
    mark("forward")
    loss = F.cross_entropy(out, y)
    loss.backward()
    mark("loss and backward")
    optimizer.step()
    mark("update")
