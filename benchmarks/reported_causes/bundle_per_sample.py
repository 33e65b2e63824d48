"""Each sample reads a file of 200 samples, of which 199 are thrown away.

Report: lanl/OpenFWI, issue 9.
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
BUNDLE = 200


class Waveforms(Dataset):
    """Seismic waves in files of 200 samples."""

    def __init__(self, folder, preload):
        self.paths = sorted(folder.glob("*.npy"))
        self.bundles = [np.load(path) for path in self.paths] if preload else None

    def __len__(self):
        return len(self.paths) * BUNDLE

    def __getitem__(self, index):
        bundle, position = divmod(index, BUNDLE)
        data = self.bundles[bundle] if self.bundles else np.load(self.paths[bundle])
        return torch.from_numpy(data[position]), index % 2


def main():
    """Write bundles of waves and train on them."""
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        for index in range(4):
            np.save(Path(name) / f"{index}.npy", random.random((BUNDLE, 64, 64), np.float32))
        model = nn.Sequential(nn.Flatten(), nn.Linear(4096, 256), nn.ReLU(), nn.Linear(256, 2))
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        loader = DataLoader(Waveforms(Path(name), preload=REMEDY), batch_size=16, shuffle=True)
        start = time.perf_counter()
        for _ in range(2):
            for waves, labels in loader:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(waves), labels)
                loss.backward()
                optimizer.step()
        print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")


main()
