"""Each layer normalizes the adjacency of the same graph again in each step.

Report: VITA-Group/Deep_GCN_Benchmarking, issue 2 (also snap-stanford/ogb, issue 130).
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))
NUM_NODES, NUM_EDGES = 4000, 60_000


class Convolution(nn.Module):
    """A graph convolution."""

    def __init__(self, num_inputs, num_outputs, cached=False):
        super().__init__()
        self.linear, self.cached, self.adjacency = nn.Linear(num_inputs, num_outputs), cached, None

    def forward(self, x, edges):
        adjacency = self.adjacency
        if adjacency is None:
            loops = torch.arange(len(x)).repeat(2, 1)
            edges = torch.cat([edges, loops], 1)
            degree = torch.zeros(len(x)).index_add(0, edges[1], torch.ones(edges.shape[1]))
            weights = degree[edges[0]].rsqrt() * degree[edges[1]].rsqrt()
            adjacency = torch.sparse_coo_tensor(edges.flip(0), weights, (len(x), len(x))).coalesce()
            if self.cached:
                self.adjacency = adjacency
        return torch.sparse.mm(adjacency, self.linear(x))


class Network(nn.Module):
    """Classes of nodes."""

    def __init__(self):
        super().__init__()
        self.first = Convolution(64, 32, cached=REMEDY)
        self.second = Convolution(32, 7, cached=REMEDY)

    def forward(self, x, edges):
        return self.second(F.dropout(F.relu(self.first(x, edges)), training=self.training), edges)


torch.manual_seed(0)
x, labels = torch.randn(NUM_NODES, 64), torch.randint(0, 7, (NUM_NODES,))
edges = torch.randint(0, NUM_NODES, (2, NUM_EDGES))
model = Network()
optimizer = torch.optim.Adam(model.parameters(), 0.01, fused=True)
start = time.perf_counter()
for _ in range(170):
    loss = F.cross_entropy(model(x, edges)[:400], labels[:400])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
