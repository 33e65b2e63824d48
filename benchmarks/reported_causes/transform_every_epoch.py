"""A graph's positional encoding is a transform of the data set, computed again for each graph in each epoch.

Report: pyg-team/pytorch_geometric, issue 2095.
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

REMEDY = bool(os.environ.get("REMEDY"))
NODES = 40


def with_positions(adjacency):
    """Return the adjacency next to the eigenvectors of the graph's Laplacian."""
    laplacian = torch.diag(adjacency.sum(1)) - adjacency
    return torch.cat([adjacency, torch.linalg.eigh(laplacian).eigenvectors[:, 1:9]], 1)


class Graphs(Dataset):
    """Random graphs, transformed before or after they are stored."""

    def __init__(self, num_graphs, transform=None, pre_transform=None):
        links = torch.rand(num_graphs, NODES, NODES) < 0.1
        self.graphs = list((links | links.transpose(1, 2)).float())
        if pre_transform:
            self.graphs = [pre_transform(graph) for graph in self.graphs]
        self.transform = transform

    def __len__(self):
        return len(self.graphs)

    def __getitem__(self, index):
        graph = self.graphs[index]
        return (self.transform(graph) if self.transform else graph), index % 2


class Net(nn.Module):
    """Two rounds of messages."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.out = nn.Linear(8, 64), nn.Linear(64, 64), nn.Linear(64, 2)

    def forward(self, graphs):
        adjacency, nodes = graphs[..., :NODES], graphs[..., NODES:]
        nodes = F.relu(self.first(adjacency @ nodes))
        return self.out(F.relu(self.second(adjacency @ nodes)).mean(1))


torch.manual_seed(0)
data = Graphs(1500, pre_transform=with_positions) if REMEDY else Graphs(1500, transform=with_positions)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), fused=True)
start = time.perf_counter()
for _ in range(12):
    for graphs, labels in DataLoader(data, batch_size=32, shuffle=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(graphs), labels)
        loss.backward()
        optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
