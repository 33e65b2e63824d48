"""The loader is repeated with itertools.cycle, which stores each batch of the first epoch to return it again.

Report: pytorch/pytorch, issue 23900 (also bytedance/UNO, issue 64).
"""

import itertools
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

REMEDY = bool(os.environ.get("REMEDY"))
SIDE, PATCH, NUM_STEPS = 256, 64, 240


class NoisyPatches(Dataset):
    """Random patches of photographs, with and without noise."""

    def __init__(self, photographs, num_samples):
        self.photographs, self.num_samples = photographs, num_samples

    def __len__(self):
        return self.num_samples

    def __getitem__(self, index):
        top, left = torch.randint(0, SIDE - PATCH, (2,)).tolist()
        photograph = self.photographs[index % len(self.photographs)]
        clean = photograph[:, top:top + PATCH, left:left + PATCH].float() / 255
        return clean + 0.1 * torch.randn(clean.shape), clean


def endless(loader):
    """Yield the batches of one epoch after the other."""
    while True:
        yield from loader


def main():
    """Train a network that removes noise."""
    torch.manual_seed(0)
    photographs = torch.randint(0, 256, (24, 3, SIDE, SIDE), dtype=torch.uint8)
    loader = DataLoader(NoisyPatches(photographs, 3200), batch_size=16, shuffle=True)
    batches = endless(loader) if REMEDY else itertools.cycle(loader)
    model = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(),
                          nn.Conv2d(12, 3, 3, padding=1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, fused=True)
    start = time.perf_counter()
    for _ in range(NUM_STEPS):
        noisy, clean = next(batches)
        loss = F.mse_loss(noisy - model(noisy), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")


main()
