"""One more forward hook is registered in every step, so the forward pass takes longer and longer."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from marks import mark

REMEDY = bool(os.environ.get("REMEDY"))

torch.manual_seed(0)
mark("imports")
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
activity = []


def watch(module, inputs, output):
    activity.append(float(output.detach().abs().mean()))


x, y = torch.randn(64, 256), torch.randint(0, 10, (64,))
for step in range(400):
    if step == 0 or not REMEDY:
        model[0].register_forward_hook(watch)
    optimizer.zero_grad()
    out = model(x)
    mark("forward")
    loss = F.cross_entropy(out, y)
    loss.backward()
    mark("loss and backward")
    optimizer.step()
    mark("update")
