"""Sixteen threads, whatever the number of cores."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from marks import mark

REMEDY = bool(os.environ.get("REMEDY"))

torch.manual_seed(0)
mark("imports")
torch.set_num_threads(len(os.sched_getaffinity(0)) if REMEDY else 16)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
x, y = torch.randn(512, 256), torch.randint(0, 10, (512,))
for _ in range(200):
    optimizer.zero_grad()
    out = model(x)
    mark("forward")
    loss = F.cross_entropy(out, y)
    loss.backward()
    mark("backward")
    optimizer.step()
    mark("update")
