"""The data set keeps its label maps as floating-point numbers.

Report: TorchIO-project/torchio, issue 375.
"""

import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

REMEDY = bool(os.environ.get("REMEDY"))


class Subject:
    """A scan and its label map."""

    def __init__(self, rng, size):
        self.scan = rng.standard_normal((1, size, size, size)).astype(np.float16)
        self.labels = rng.integers(0, 6, (size, size, size)).astype(np.uint8 if REMEDY else np.float32)


class Subjects(Dataset):
    """Random patches of subjects."""

    def __init__(self, num, size, patch):
        rng = np.random.default_rng(0)
        self.subjects, self.patch = [Subject(rng, size) for _ in range(num)], patch

    def __len__(self):
        return 4 * len(self.subjects)

    def __getitem__(self, index):
        subject = self.subjects[index % len(self.subjects)]
        corner = np.random.randint(0, subject.labels.shape[0] - self.patch, 3)
        box = tuple(slice(first, first + self.patch) for first in corner)
        return (torch.from_numpy(subject.scan[(slice(None), *box)].astype(np.float32)),
                torch.from_numpy(subject.labels[box].astype(np.int64)))


def main():
    """Train a segmentation network."""
    torch.manual_seed(0)
    np.random.seed(0)
    model = nn.Sequential(nn.Conv3d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv3d(16, 16, 3, padding=1), nn.ReLU(),
                          nn.Conv3d(16, 6, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    loader = DataLoader(Subjects(40, 112, 24), batch_size=4, shuffle=True)
    start = time.perf_counter()
    for _ in range(6):
        for scans, labels in loader:
            loss = F.cross_entropy(model(scans), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")


main()
