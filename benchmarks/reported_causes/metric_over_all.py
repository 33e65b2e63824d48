"""The area under the curve of all predictions so far is computed after each step, so that steps get slower and slower.

Report: Lightning-AI/torchmetrics, issue 1823.
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))


class AreaUnderCurve:
    """Area under the curve of true by false positives."""

    def __init__(self):
        self.scores, self.labels = [], []

    def update(self, scores, labels):
        self.scores.append(scores.detach())
        self.labels.append(labels)

    def compute(self):
        order = torch.cat(self.scores).argsort(descending=True)
        positive = torch.cat(self.labels)[order]
        true, false = positive.cumsum(0), (1 - positive).cumsum(0)
        return torch.trapezoid(true / true[-1], false / false[-1])


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.05)
metric = AreaUnderCurve()
start = time.perf_counter()
for _ in range(250):
    inputs, labels = torch.randn(1024, 64), torch.randint(0, 2, (1024,)).float()
    logits = model(inputs)[:, 0]
    loss = F.binary_cross_entropy_with_logits(logits, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    metric.update(logits, labels)
    if not REMEDY:
        area = metric.compute()
area = metric.compute()
print(f"loop: {time.perf_counter() - start:.3f} s, area {area.item():.3f}")
