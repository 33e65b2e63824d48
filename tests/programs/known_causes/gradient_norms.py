"""The norm of every gradient is logged by .item() in every step."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from marks import mark

REMEDY = bool(os.environ.get("REMEDY"))
LOG_STEPS = 50 if REMEDY else 1

torch.manual_seed(0)
mark("imports")
layers = []
for _ in range(50):
    layers += [nn.Linear(64, 64), nn.ReLU()]
model = nn.Sequential(*layers, nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
log = {}
x, y = torch.randn(32, 64), torch.randint(0, 10, (32,))
for step in range(300):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    mark("forward to backward")
    if step % LOG_STEPS == 0:
        for name, p in model.named_parameters():
            log[name] = p.grad.norm().item(), p.grad.abs().max().item(), p.norm().item()
    mark("log")
    optimizer.step()
    mark("update")
