"""The logger takes the metrics of each step, and writes its whole file again.

Report: Lightning-AI/pytorch-lightning, issue 1986.
"""

import csv
import os
import tempfile
import time
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))


class CSVLogger:
    """Metrics of a training in a file."""

    def __init__(self, path, every):
        self.path, self.every, self.rows = path, every, []

    def log_metrics(self, metrics, step):
        if step % self.every:
            return
        self.rows.append({"step": step} | {name: float(value) for name, value in metrics.items()})
        with self.path.open("w", newline="") as file:
            writer = csv.DictWriter(file, self.rows[0].keys())
            writer.writeheader()
            writer.writerows(self.rows)


def main():
    """Train an LSTM classifier."""
    torch.manual_seed(0)
    lstm, out = nn.LSTM(32, 100, batch_first=True), nn.Linear(100, 4)
    parameters = [*lstm.parameters(), *out.parameters()]
    optimizer = torch.optim.SGD(parameters, 0.05)
    with tempfile.TemporaryDirectory() as name:
        logger = CSVLogger(Path(name) / "metrics.csv", every=50 if REMEDY else 1)
        start = time.perf_counter()
        for step in range(400):
            sequences, labels = torch.randn(32, 20, 32), torch.randint(0, 4, (32,))
            loss = F.cross_entropy(out(lstm(sequences)[0][:, -1]), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            metrics = {"loss": loss.detach()} | {f"norm_{i}": p.grad.norm() for i, p in enumerate(parameters)}
            logger.log_metrics(metrics, step)
        print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")


main()
