"""The input is made from Python lists of NumPy rows in every step."""

import os

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from marks import mark

REMEDY = bool(os.environ.get("REMEDY"))

torch.manual_seed(0)
random = np.random.default_rng(0)
rows = [random.random(256, dtype=np.float32) for _ in range(2000)]
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
mark("imports")
table = torch.from_numpy(np.stack(rows))
for step in range(150):
    if REMEDY:
        x = table[(step * 31 + torch.arange(256)) % 2000]
        y = torch.arange(256) % 10
    else:
        chosen = [rows[(step * 31 + i) % 2000].tolist() for i in range(256)]
        x = torch.tensor(chosen)
        y = torch.tensor([i % 10 for i in range(256)])
    mark("make tensors")
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    mark("step")
