"""A checkpoint is written every 25 steps, and a short validation runs every 50."""

import io
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from marks import mark

REMEDY = bool(os.environ.get("REMEDY"))
CHECKPOINT_STEPS = 100 if REMEDY else 25

torch.manual_seed(0)
mark("imports")
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
x, y = torch.randn(256, 256), torch.randint(0, 10, (256,))
for step in range(1, 201):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    mark("step")
    if step % CHECKPOINT_STEPS == 0:
        file = io.BytesIO()
        torch.save([model.state_dict(), optimizer.state_dict()], file)
        time.sleep(0.4)  # stands for a slow file system
        mark("checkpoint")
    if step % 50 == 0:
        model.eval()
        with torch.no_grad():
            for _ in range(10):
                F.cross_entropy(model(x), y)
        model.train()
        mark("validation")
