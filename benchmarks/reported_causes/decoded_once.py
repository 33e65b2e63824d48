"""The data set stores decoded images, and each of its workers fills a store of its own.

Report: ultralytics/yolov3, issue 642.
"""

import os
import tempfile
import time
import zlib
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

REMEDY = bool(os.environ.get("REMEDY"))
SIDE, CROP, NUM_IMAGES = 360, 96, 560


class Plants(Dataset):
    """Crops of images in compressed files, decoded when they are first used."""

    def __init__(self, folder):
        self.paths = sorted(folder.glob("*.bin"))
        if REMEDY:
            self.images = torch.zeros(len(self.paths), SIDE, SIDE, 3, dtype=torch.uint8).share_memory_()
            self.loaded = torch.zeros(len(self.paths), dtype=torch.bool).share_memory_()
        else:
            self.images, self.loaded = [None] * len(self.paths), [False] * len(self.paths)

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        if not self.loaded[index]:
            self.images[index] = self.load(self.paths[index])
            self.loaded[index] = True
        top, left = torch.randint(0, SIDE - CROP, (2,)).tolist()
        crop = self.images[index][top:top + CROP, left:left + CROP]
        return crop.permute(2, 0, 1).float() / 255, index % 8

    def load(self, path):
        pixels = np.frombuffer(zlib.decompress(path.read_bytes()), dtype=np.uint8)
        return torch.from_numpy(pixels.reshape(SIDE, SIDE, 3).copy())


def write_images(folder):
    """Write compressed images of plain squares."""
    source = np.random.default_rng(0)
    for index in range(NUM_IMAGES):
        squares = source.integers(0, 256, (SIDE // 8, SIDE // 8, 3), dtype=np.uint8)
        pixels = squares.repeat(8, axis=0).repeat(8, axis=1)
        (folder / f"{index:04}.bin").write_bytes(zlib.compress(pixels.tobytes(), 1))


def main():
    """Train a classifier with two workers."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        write_images(Path(name))
        loader = DataLoader(Plants(Path(name)), batch_size=20, shuffle=True, num_workers=2, persistent_workers=True)
        model = nn.Sequential(nn.Conv2d(3, 32, 5, 2), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(4),
                              nn.Conv2d(64, 64, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 8))
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
        start = time.perf_counter()
        for _ in range(4):
            for crops, labels in loader:
                loss = F.cross_entropy(model(crops), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")


main()
