"""The evaluation collects predictions without no_grad, and each keeps the activations of its forward pass.

Report: chrischoy/FCGF, issue 15 (also skorch-dev/skorch, issue 218).
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))


def evaluate(model, images, labels):
    """Return the accuracy over all batches."""
    model.eval()
    predictions = []
    with torch.set_grad_enabled(not REMEDY):
        for first in range(0, len(images), 8):
            predictions.append(model(images[first:first + 8]))
    model.train()
    return (torch.cat(predictions).argmax(1) == labels).float().mean()


torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1),
                      nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.05)
images, labels = torch.randn(320, 3, 48, 48), torch.randint(0, 10, (320,))
start = time.perf_counter()
for _ in range(4):
    for first in range(0, 320, 16):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images[first:first + 16]), labels[first:first + 16])
        loss.backward()
        optimizer.step()
    accuracy = evaluate(model, images, labels)
print(f"loop: {time.perf_counter() - start:.3f} s, accuracy {float(accuracy):.3f}")
