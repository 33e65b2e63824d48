"""The data came from NumPy in double precision, and the model was made double to take it.

Report: cornellius-gp/gpytorch, issue 382.
"""

import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))

torch.manual_seed(0)
random = np.random.default_rng(0)
inputs, targets = torch.from_numpy(random.random((8192, 64))), torch.from_numpy(random.random((8192, 1)))
model = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1))
if REMEDY:
    inputs, targets = inputs.float(), targets.float()
else:
    model = model.double()
optimizer = torch.optim.Adam(model.parameters(), fused=True)
start = time.perf_counter()
for _ in range(120):
    chosen = torch.randint(0, 8192, (1024,))
    loss = F.mse_loss(model(inputs[chosen]), targets[chosen])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
