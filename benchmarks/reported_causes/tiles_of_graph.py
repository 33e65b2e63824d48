"""The edges within each tile of a tissue are found by testing all edges of the tissue.

Report: dpeerlab/segger, issue 49.
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))
SIDE, TILE = 240, 20


class Tissue:
    """Cells in a plane, with edges to their neighbors."""

    def __init__(self):
        names = torch.randperm(SIDE * SIDE).reshape(SIDE, SIDE)
        shifts = [(down, right) for down in range(-2, 3) for right in range(-2, 3) if 0 < abs(down) + abs(right) < 4]
        pairs = [torch.stack([names.flatten(), names.roll(shift, (0, 1)).flatten()]) for shift in shifts]
        edges = torch.cat(pairs, 1)
        self.num_nodes = SIDE * SIDE
        self.edges = edges[:, torch.randperm(edges.shape[1])]
        self.features, self.labels = torch.randn(self.num_nodes, 24), torch.randint(0, 6, (self.num_nodes,))
        self.tiles = names.unfold(0, TILE, TILE).unfold(1, TILE, TILE).reshape(-1, TILE * TILE)
        if REMEDY:
            self.edges = self.edges[:, self.edges[0].argsort()]
            self.first = torch.searchsorted(self.edges[0].contiguous(), torch.arange(self.num_nodes + 1))

    def subgraph(self, nodes):
        """Return the edges between nodes, with the nodes' places in the tile."""
        place = torch.full((self.num_nodes,), -1)
        place[nodes] = torch.arange(len(nodes))
        edges = self.edges
        if REMEDY:
            counts = self.first[nodes + 1] - self.first[nodes]
            steps = torch.arange(int(counts.sum())) - (counts.cumsum(0) - counts).repeat_interleave(counts)
            edges = edges[:, self.first[nodes].repeat_interleave(counts) + steps]
        inside = (place[edges[0]] >= 0) & (place[edges[1]] >= 0)
        return place[edges[:, inside]]


class Segmenter(nn.Module):
    """Two layers that average over neighbors."""

    def __init__(self):
        super().__init__()
        self.own = nn.ModuleList([nn.Linear(24, 96), nn.Linear(96, 96)])
        self.near = nn.ModuleList([nn.Linear(24, 96), nn.Linear(96, 96)])
        self.out = nn.Linear(96, 6)

    def forward(self, x, edges):
        degree = torch.bincount(edges[1], minlength=len(x)).clamp(min=1)[:, None]
        for own, near in zip(self.own, self.near, strict=True):
            mean = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]]) / degree
            x = F.relu(own(x) + near(mean))
        return self.out(x)


torch.manual_seed(0)
tissue, model = Tissue(), Segmenter()
optimizer = torch.optim.Adam(model.parameters(), 1e-3, fused=True)
start = time.perf_counter()
for _ in range(2):
    for tile in torch.randperm(len(tissue.tiles)).tolist():
        nodes = tissue.tiles[tile]
        logits = model(tissue.features[nodes], tissue.subgraph(nodes))
        loss = F.cross_entropy(logits, tissue.labels[nodes])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
