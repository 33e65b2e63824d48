"""Each sample reads and converts a whole photograph, of which a patch of 44 by 44 pixels is used.

Report: swift-n-brutal/illuminant_estimation, issue 2.
"""

import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

REMEDY = bool(os.environ.get("REMEDY"))
SIDE, PATCH = 800, 44


class Patches(Dataset):
    """Random patches of photographs."""

    def __init__(self, folder, num_samples):
        self.paths, self.num_samples = sorted(folder.glob("*.npy")), num_samples
        self.random = np.random.default_rng(1)

    def __len__(self):
        return self.num_samples

    def __getitem__(self, index):
        path = self.paths[index % len(self.paths)]
        top, left = self.random.integers(0, SIDE - PATCH, 2)
        if REMEDY:
            photograph = np.load(path, mmap_mode="r")
            patch = photograph[top:top + PATCH, left:left + PATCH].astype(np.float32) / 255
        else:
            photograph = np.load(path).astype(np.float32) / 255
            patch = photograph[top:top + PATCH, left:left + PATCH]
        return torch.from_numpy(patch.transpose(2, 0, 1).copy()), torch.ones(3)


def main():
    """Write photographs and train on their patches."""
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        for index in range(8):
            np.save(Path(name) / f"{index}.npy", random.integers(0, 255, (SIDE, SIDE, 3), dtype=np.uint8))
        model = nn.Sequential(nn.Conv2d(3, 24, 8), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(1944, 3))
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        start = time.perf_counter()
        for patches, light in DataLoader(Patches(Path(name), 960), batch_size=16):
            optimizer.zero_grad()
            loss = F.mse_loss(model(patches), light)
            loss.backward()
            optimizer.step()
        print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")


main()
