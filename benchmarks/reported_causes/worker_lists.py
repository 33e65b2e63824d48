"""Workers read from a list of Python objects: each read changes a reference count, and so copies the page.

Report: pytorch/pytorch, issue 13246 (also referit3d/referit3d, issue 5).
"""

import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

REMEDY = bool(os.environ.get("REMEDY"))
NUM_ITEMS = 60_000


class Annotations(Dataset):
    """A row of numbers for each item."""

    def __init__(self):
        random = np.random.default_rng(0)
        table = random.random((NUM_ITEMS, 32), dtype=np.float32)
        self.rows = table if REMEDY else table.tolist()

    def __len__(self):
        return NUM_ITEMS

    def __getitem__(self, index):
        return torch.as_tensor(self.rows[index]), index % 4


def main():
    """Train for two epochs with two workers."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    loader = DataLoader(Annotations(), batch_size=128, shuffle=True, num_workers=2, persistent_workers=True)
    start = time.perf_counter()
    for _ in range(2):
        for rows, labels in loader:
            loss = F.cross_entropy(model(rows), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")


main()
