"""A bucketing sampler measures the length of all recordings at the start of each epoch.

Report: SeanNaren/deepspeech.pytorch, issue 143.
"""

import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, Sampler

REMEDY = bool(os.environ.get("REMEDY"))


class Recordings(Dataset):
    """Sounds of different lengths, with silence at the end."""

    def __init__(self, num_recordings):
        random = np.random.default_rng(0)
        self.sounds = []
        for _ in range(num_recordings):
            sound = np.zeros(800, np.float32)
            length = random.integers(100, 800)
            sound[:length] = random.random(length, np.float32)
            self.sounds.append(sound)

    def __len__(self):
        return len(self.sounds)

    def length(self, index):
        loudness = np.convolve(np.abs(self.sounds[index]), np.ones(40) / 40, "same")
        return int(np.flatnonzero(loudness > 1e-2)[-1]) + 1

    def __getitem__(self, index):
        return torch.from_numpy(self.sounds[index]), index % 4


class BucketingSampler(Sampler):
    """Batches of recordings of similar length."""

    def __init__(self, data, batch_size):
        self.data, self.batch_size = data, batch_size
        self.lengths = self.measure() if REMEDY else None

    def measure(self):
        return [self.data.length(index) for index in range(len(self.data))]

    def __iter__(self):
        lengths = self.lengths or self.measure()
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        batches = [order[first:first + self.batch_size] for first in range(0, len(order), self.batch_size)]
        return iter([batches[index] for index in torch.randperm(len(batches)).tolist()])

    def __len__(self):
        return len(self.data) // self.batch_size


torch.manual_seed(0)
data = Recordings(8000)
model = nn.Sequential(nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
loader = DataLoader(data, batch_sampler=BucketingSampler(data, 100))
start = time.perf_counter()
for _ in range(10):
    for sounds, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(sounds), labels)
        loss.backward()
        optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
