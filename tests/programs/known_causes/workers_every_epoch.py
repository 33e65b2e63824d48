"""The loader's workers are started again in every epoch, and each opens its source first."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from marks import mark
from torch.utils.data import DataLoader, Dataset

REMEDY = bool(os.environ.get("REMEDY"))


class Records(Dataset):
    def __len__(self):
        return 640

    def __getitem__(self, index):
        return torch.randn(256), index % 10


def open_source(worker):
    time.sleep(0.4)  # stands for opening an archive


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(Records(), 64, num_workers=2, worker_init_fn=open_source, persistent_workers=REMEDY)
    mark("imports")
    for _ in range(12):
        first = True
        for x, y in loader:
            mark("first batch of epoch" if first else "batch")
            first = False
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            mark("step")
        mark("epoch end")


main()
