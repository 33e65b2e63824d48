"""The loss packs the boxes of each image into a padded tensor, image by image in Python.

Report: ultralytics/ultralytics, pull request 23966.
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))
BATCH = 256


def pack(image_of_box, boxes):
    """Return the boxes of each image, padded with zeros."""
    counts = torch.bincount(image_of_box, minlength=BATCH)
    packed = torch.zeros(BATCH, int(counts.max()), 5)
    if REMEDY:
        first = counts.cumsum(0) - counts
        packed[image_of_box, torch.arange(len(boxes)) - first[image_of_box]] = boxes
    else:
        for image in range(BATCH):
            matches = image_of_box == image
            if num_boxes := int(matches.sum()):
                packed[image, :num_boxes] = boxes[matches]
    return packed


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 5))
optimizer = torch.optim.SGD(model.parameters(), 0.05)
start = time.perf_counter()
for _ in range(350):
    features = torch.randn(BATCH, 64)
    image_of_box = torch.randint(0, BATCH, (2000,)).sort().values
    targets = pack(image_of_box, torch.rand(2000, 5))
    predicted = model(features)
    loss = F.l1_loss(predicted[:, None].expand_as(targets), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
