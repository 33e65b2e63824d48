"""A metric stores the predictions of each step without detaching them, and so all that led to them.

Report: Lightning-AI/torchmetrics, issue 1461.
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))


class Metric:
    """All predictions of an epoch."""

    def __init__(self):
        self.predictions, self.targets = [], []

    def update(self, predictions, targets):
        if REMEDY:
            self.predictions.append(float((predictions.argmax(1) == targets).float().mean()))
        else:
            self.predictions.append(predictions)
            self.targets.append(targets)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 256), nn.ReLU(), nn.Linear(256, 900))
optimizer = torch.optim.SGD(model.parameters(), 0.05)
metric = Metric()
start = time.perf_counter()
for _ in range(300):
    inputs, targets = torch.randn(256, 20), torch.randint(0, 900, (256,))
    logits = model(inputs)
    loss = F.cross_entropy(logits, targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    metric.update(torch.sigmoid(logits), targets)
print(f"loop: {time.perf_counter() - start:.3f} s, {len(metric.predictions)} batches")
