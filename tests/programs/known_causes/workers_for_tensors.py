"""A data set in memory is read row by row through two workers, which cost more than they give."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from marks import mark
from torch.utils.data import DataLoader, TensorDataset

REMEDY = bool(os.environ.get("REMEDY"))


def main():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(8192, 256), torch.randint(0, 10, (8192,)))
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(data, 64, shuffle=True, num_workers=0 if REMEDY else 2)
    mark("imports")
    for _ in range(4):
        for x, y in loader:
            mark("data")
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            mark("step")


main()
