"""A detector's matcher computes the cost of each query with the targets of all images, and uses those of its own.

Report: ultralytics/ultralytics, pull request 26150.
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))
BATCH, QUERIES, TARGETS, CLASSES = 16, 200, 30, 20


def cost_of(logits, boxes, labels, targets):
    """Return the cost of each pair of a query and a target: class, distance and overlap."""
    class_cost = -logits.softmax(-1)[:, labels]
    distance = (boxes[:, None] - targets[None]).abs().sum(-1)
    low = torch.maximum(boxes[:, None, :2] - boxes[:, None, 2:] / 2, targets[None, :, :2] - targets[None, :, 2:] / 2)
    high = torch.minimum(boxes[:, None, :2] + boxes[:, None, 2:] / 2, targets[None, :, :2] + targets[None, :, 2:] / 2)
    overlap = (high - low).clamp(min=0).prod(-1)
    union = boxes[:, 2:].prod(-1)[:, None] + targets[:, 2:].prod(-1)[None] - overlap
    return class_cost + 5 * distance - 2 * overlap / union


@torch.no_grad()
def match(logits, boxes, labels, targets):
    """Return the cheapest query of each target, image by image."""
    if REMEDY:
        blocks = [cost_of(*image) for image in zip(logits, boxes, labels, targets, strict=True)]
    else:
        cost = cost_of(logits.flatten(0, 1), boxes.flatten(0, 1), labels.flatten(), targets.flatten(0, 1))
        blocks = [cost.view(BATCH, QUERIES, BATCH, TARGETS)[image, :, image] for image in range(BATCH)]
    return torch.stack([block.argmin(0) for block in blocks])


class Head(nn.Module):
    """Classes and boxes of queries."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
        self.classes, self.boxes = nn.Linear(256, CLASSES), nn.Linear(256, 4)

    def forward(self, queries):
        hidden = self.body(queries)
        return self.classes(hidden), self.boxes(hidden).sigmoid()


torch.manual_seed(0)
model = Head()
optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
images = torch.arange(BATCH)[:, None]
start = time.perf_counter()
for _ in range(60):
    queries, labels = torch.randn(BATCH, QUERIES, 128), torch.randint(0, CLASSES, (BATCH, TARGETS))
    targets = torch.rand(BATCH, TARGETS, 4)
    logits, boxes = model(queries)
    chosen = match(logits, boxes, labels, targets)
    loss = F.l1_loss(boxes[images, chosen], targets)
    loss = loss + F.cross_entropy(logits[images, chosen].flatten(0, 1), labels.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
