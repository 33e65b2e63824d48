"""The first step with each of three batch sizes takes long, as with tuning or compilation."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from marks import mark

REMEDY = bool(os.environ.get("REMEDY"))

torch.manual_seed(0)
mark("imports")
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
tuned = set()
for step in range(240):
    num_rows = 128 if REMEDY else (64, 128, 192)[step // 80]
    x, y = torch.randn(num_rows, 256), torch.randint(0, 10, (num_rows,))
    mark("data")
    optimizer.zero_grad()
    if num_rows not in tuned:
        tuned.add(num_rows)
        time.sleep(1.5)  # stands for tuning of kernels
        mark("tuning")
    out = model(x)
    loss = F.cross_entropy(out, y)
    loss.backward()
    optimizer.step()
    mark("step")
