"""The training step computes a metric of its predicted masks, which labels their connected components in Python.

Report: Lightning-AI/pytorch-lightning, issue 3050.
"""

import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))


def components(mask):
    """Return the sets of neighboring pixels of a mask."""
    unseen, found = set(zip(*np.nonzero(mask), strict=True)), []
    while unseen:
        pending, component = [unseen.pop()], []
        while pending:
            row, column = pending.pop()
            component.append((row, column))
            for near in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
                if near in unseen:
                    unseen.remove(near)
                    pending.append(near)
        found.append(component)
    return found


def dice(logits, targets, min_size):
    """Return the mean Dice coefficient of the large components."""
    scores = []
    for predicted, target in zip((logits > 0).numpy(), targets.numpy(), strict=True):
        kept = np.zeros_like(target)
        for component in components(predicted):
            if len(component) >= min_size:
                rows, columns = zip(*component, strict=True)
                kept[list(rows), list(columns)] = 1
        scores.append(2 * (kept * target).sum() / max(kept.sum() + target.sum(), 1))
    return float(np.mean(scores))


class Segmenter(nn.Module):
    """Logits of a mask, in the steps of a trainer."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
                                 nn.Conv2d(8, 1, 1))
        self.logged = []

    def forward(self, images):
        return self.net(images).squeeze(1)

    def training_step(self, batch, number):
        images, masks = batch
        logits = self(images)
        loss = F.binary_cross_entropy_with_logits(logits, masks)
        if not REMEDY or number % 20 == 0:
            self.logged.append(dice(logits.detach().cpu(), masks.cpu(), 12))
        return loss


class Trainer:
    """Trains for some steps."""

    def fit(self, module, batches):
        optimizer = torch.optim.Adam(module.parameters(), 1e-3)
        for number, batch in enumerate(batches):
            loss = module.training_step(batch, number)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss


def batches(num):
    """Yield pictures with bright disks, and their masks."""
    grid = torch.stack(torch.meshgrid(torch.arange(96), torch.arange(96), indexing="ij"))
    for _ in range(num):
        centers = torch.randint(12, 84, (8, 2, 1, 1))
        masks = ((grid[None] - centers).square().sum(1) < 144).float()
        yield (masks + 1.5 * torch.randn(8, 96, 96))[:, None], masks


torch.manual_seed(0)
module = Segmenter()
start = time.perf_counter()
loss = Trainer().fit(module, batches(80))
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
