"""A checkpoint of all embeddings is written after each short epoch.

Report: facebookresearch/PyTorch-BigGraph, issue 222.
"""

import os
import tempfile
import time
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))
SAVE_EPOCHS = 20 if REMEDY else 1


def main():
    """Embed a graph of 100,000 nodes."""
    torch.manual_seed(0)
    nodes = nn.Embedding(100_000, 128, sparse=True)
    optimizer = torch.optim.SGD(nodes.parameters(), 0.1)
    with tempfile.TemporaryDirectory() as name:
        start = time.perf_counter()
        for epoch in range(20):
            for _ in range(40):
                left, right, other = torch.randint(0, 100_000, (3, 1000))
                positive = (nodes(left) * nodes(right)).sum(1)
                negative = (nodes(left) * nodes(other)).sum(1)
                loss = F.softplus(negative - positive).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if (epoch + 1) % SAVE_EPOCHS == 0:
                torch.save(nodes.state_dict(), Path(name) / "embeddings.pt")
        print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")


main()
