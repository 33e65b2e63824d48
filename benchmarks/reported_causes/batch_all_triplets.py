"""The loss computes all triples of a batch and then masks them, although few pairs have the same label.

Report: huggingface/sentence-transformers, pull request 4029.
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))
MARGIN = 0.2


def triplet_loss(embeddings, labels):
    """Return the mean loss of the triplets that violate the margin."""
    distances = 1 - embeddings @ embeddings.T
    is_same = labels[:, None] == labels
    is_positive = is_same & ~torch.eye(len(labels), dtype=torch.bool)
    if REMEDY:
        anchors, positives = is_positive.nonzero(as_tuple=True)
        losses = F.relu(distances[anchors, positives][:, None] - distances[anchors] + MARGIN)
        losses = losses * ~is_same[anchors]
    else:
        losses = F.relu(distances[:, :, None] - distances[:, None, :] + MARGIN)
        losses = losses * (is_positive[:, :, None] & ~is_same[:, None, :])
    return losses.sum() / (losses > 1e-16).sum().clamp_min(1)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 64))
optimizer = torch.optim.Adam(model.parameters(), 1e-4, fused=True)
centres = torch.randn(500, 128)
start = time.perf_counter()
for _ in range(90):
    labels = torch.randperm(500)[:72].repeat_interleave(2)
    samples = centres[labels] + 0.5 * torch.randn(144, 128)
    loss = triplet_loss(F.normalize(model(samples), dim=1), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
