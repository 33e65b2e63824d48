"""All windows of one week are stacked into an array, which has each hour of the series 168 times.

Report: timeseriesAI/tsai, issue 72 (also springfall2008/batpred, pull request 4567).
"""

import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

REMEDY = bool(os.environ.get("REMEDY"))
NUM_HOURS, NUM_METERS, WINDOW, HORIZON = 36_000, 16, 168, 24


class Windows(Dataset):
    """A week of all meters, and the day after it."""

    def __init__(self, series):
        self.num_windows = len(series) - WINDOW - HORIZON + 1
        self.series = series
        if not REMEDY:
            self.inputs = np.stack([series[first:first + WINDOW] for first in range(self.num_windows)])

    def __len__(self):
        return self.num_windows

    def __getitem__(self, index):
        inputs = self.series[index:index + WINDOW] if REMEDY else self.inputs[index]
        return inputs, self.series[index + WINDOW:index + WINDOW + HORIZON, 0]


class Forecast(nn.Module):
    """Convolutions over hours, and a linear layer for the next day."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(NUM_METERS, 64, 5, 2), nn.GELU(), nn.Conv1d(64, 64, 5, 2), nn.GELU())
        self.out = nn.Linear(64 * 39, HORIZON)

    def forward(self, inputs):
        return self.out(self.body(inputs.transpose(1, 2)).flatten(1))


def main():
    """Train for one epoch."""
    torch.manual_seed(0)
    source = np.random.default_rng(0)
    hours = np.arange(NUM_HOURS)[:, None]
    series = (np.sin(hours * np.pi / 12) + source.normal(0, 0.3, (NUM_HOURS, NUM_METERS))).astype(np.float32)
    loader = DataLoader(Windows(series), batch_size=64, shuffle=True, drop_last=True)
    model = Forecast()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    start = time.perf_counter()
    for inputs, targets in loader:
        loss = F.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")


main()
