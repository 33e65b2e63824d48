"""The outputs of every step are kept for a metric, and with them what backward saved."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from marks import mark, resident_mib

REMEDY = bool(os.environ.get("REMEDY"))

torch.manual_seed(0)
mark("imports")
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 2000))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
outputs = []
start_mib = resident_mib()
for _ in range(250):
    x, y = torch.randn(128, 64), torch.randint(0, 2000, (128,))
    logits = model(x)
    loss = F.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    outputs.append(logits.max().item() if REMEDY else logits)  # 128 x 2000 x 4 bytes = 1.0 MB per step
    mark("step")
if os.environ.get("TRUTH"):
    print(f"TRUTH grew by {resident_mib() - start_mib:.0f} MiB in 250 steps")
print(len(outputs))
