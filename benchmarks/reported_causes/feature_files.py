"""Each encoded image has a file of its own, which is read whenever a batch needs it.

Report: chuanyangjin/fast-DiT, issue 12.
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


class Features(Dataset):
    """Encoded images and their labels."""

    def __init__(self, folder):
        self.features, self.labels = Path(folder, "features"), Path(folder, "labels")
        self.names = sorted(path.name for path in self.features.iterdir())
        if REMEDY:
            self.all_features = torch.from_numpy(np.stack([np.load(self.features / name)[0] for name in self.names]))
            self.all_labels = torch.from_numpy(np.stack([np.load(self.labels / name)[0] for name in self.names]))

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        if REMEDY:
            return self.all_features[index], self.all_labels[index]
        features = np.load(self.features / self.names[index])
        labels = np.load(self.labels / self.names[index])
        return torch.from_numpy(features)[0], torch.from_numpy(labels)[0]


class Denoiser(nn.Module):
    """Predicts the noise of features."""

    def __init__(self):
        super().__init__()
        self.labels = nn.Embedding(10, 64)
        self.body = nn.Sequential(nn.Linear(4 * 16 * 16 + 64, 128), nn.SiLU(), nn.Linear(128, 4 * 16 * 16))

    def forward(self, features, labels):
        return self.body(torch.cat([features.flatten(1), self.labels(labels)], 1)).view_as(features)


def prepare(folder):
    """Write the features that an encoder has computed."""
    rng = np.random.default_rng(0)
    for kind in ("features", "labels"):
        Path(folder, kind).mkdir()
    for number in range(2000):
        np.save(Path(folder, "features", f"{number}.npy"), rng.standard_normal((1, 4, 16, 16), dtype=np.float32))
        np.save(Path(folder, "labels", f"{number}.npy"), rng.integers(0, 10, 1))


def main():
    """Train the denoiser."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        prepare(folder)
        model = Denoiser()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
        loader = DataLoader(Features(folder), batch_size=32, shuffle=True, drop_last=True)
        start = time.perf_counter()
        for _ in range(12):
            for features, labels in loader:
                noise = torch.randn_like(features)
                loss = F.mse_loss(model(features + noise, labels), noise)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")


main()
