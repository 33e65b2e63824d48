"""Validation without no_grad sums the losses, so every graph with its activations stays alive."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from marks import mark, resident_mib

REMEDY = bool(os.environ.get("REMEDY"))

torch.manual_seed(0)
mark("imports")
model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
                      nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
images, labels = torch.randn(16, 3, 64, 64), torch.randint(0, 10, (16,))
for _ in range(3):
    model.train()
    for _ in range(30):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        mark("train step")
    model.eval()
    total = 0
    before_mib = resident_mib()
    for _ in range(40):
        with torch.set_grad_enabled(not REMEDY):
            total = total + F.cross_entropy(model(images), labels)
        mark("validation step")
    if os.environ.get("TRUTH"):
        print(f"TRUTH validation grew the process by {resident_mib() - before_mib:.0f} MiB in 40 steps")
    print(float(total) / 40)
