"""The training creates a sampler of neighbors, which sorts all edges, for each batch.

Report: pyg-team/pytorch_geometric, issue 1034.
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))


class NeighborSampler:
    """Samples neighbors of nodes."""

    def __init__(self, edges, num_nodes, size):
        order = edges[1].argsort()
        self.sources, counts = edges[0][order], torch.bincount(edges[1], minlength=num_nodes)
        self.starts, self.counts, self.size = counts.cumsum(0) - counts, counts, size

    def sample(self, nodes):
        chosen = (torch.rand(len(nodes), self.size) * self.counts[nodes].clamp(min=1)[:, None]).long()
        return self.sources[(self.starts[nodes][:, None] + chosen).clamp(max=len(self.sources) - 1)]


class Sage(nn.Module):
    """Classes of nodes from their features and those of neighbors."""

    def __init__(self, width, num_classes):
        super().__init__()
        self.own, self.near = nn.Linear(width, 64), nn.Linear(width, 64)
        self.out = nn.Linear(64, num_classes)

    def forward(self, own, neighbors):
        return self.out(F.relu(self.own(own) + self.near(neighbors.mean(1))))


def main():
    """Train on batches of nodes."""
    torch.manual_seed(0)
    num_nodes = 20_000
    edges, features = torch.randint(0, num_nodes, (2, 300_000)), torch.randn(num_nodes, 32)
    labels = torch.randint(0, 7, (num_nodes,))
    model = Sage(32, 7)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    sampler = None
    start = time.perf_counter()
    for _ in range(9):
        for nodes in torch.randperm(num_nodes).split(512):
            if sampler is None or not REMEDY:
                sampler = NeighborSampler(edges, num_nodes, 10)
            loss = F.cross_entropy(model(features[nodes], features[sampler.sample(nodes)]), labels[nodes])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")


main()
