"""A metric keeps the predictions of all epochs, as nothing resets it, and is computed from all of them.

Report: Lightning-AI/torchmetrics, issue 1823.
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

REMEDY = bool(os.environ.get("REMEDY"))


class AveragePrecision:
    """Average precision of a binary classifier."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.scores, self.labels = [], []

    def update(self, scores, labels):
        self.scores.append(scores.detach())
        self.labels.append(labels)

    def compute(self):
        order = torch.cat(self.scores).argsort(descending=True)
        hits = torch.cat(self.labels)[order]
        precision = hits.cumsum(0) / torch.arange(1, len(hits) + 1)
        return float((precision * hits).sum() / hits.sum())


class Classifier(nn.Module):
    """Logit of a sample."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
        self.average_precision = AveragePrecision()

    def forward(self, inputs):
        return self.net(inputs).squeeze(1)


def run_epoch(model, optimizer, loader):
    """Train for an epoch; log the metric 10 times."""
    logs = []
    for number, (inputs, labels) in enumerate(loader):
        logits = model(inputs)
        loss = F.binary_cross_entropy_with_logits(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.average_precision.update(logits.sigmoid(), labels)
        if number % 8 == 7:
            logs.append(model.average_precision.compute())
    return loss, logs


def main():
    """Train the classifier."""
    torch.manual_seed(0)
    inputs = torch.randn(20480, 40)
    labels = (inputs[:, :4].sum(1) > 1).float()
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=256, shuffle=True)
    start = time.perf_counter()
    for _ in range(15):
        loss, logs = run_epoch(model, optimizer, loader)
        if REMEDY:
            model.average_precision.reset()
    print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}, precision {logs[-1]:.3f}")


main()
