"""A logger waits for its server in every step."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from marks import mark

REMEDY = bool(os.environ.get("REMEDY"))
LOG_STEPS = 20 if REMEDY else 1


class Logger:
    def log(self, **values):
        time.sleep(0.03)  # stands for a request


torch.manual_seed(0)
mark("imports")
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
logger = Logger()
x, y = torch.randn(64, 256), torch.randint(0, 10, (64,))
for step in range(150):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    mark("step")
    if step % LOG_STEPS == 0:
        logger.log(loss=loss.item(), step=step)
    mark("log")
