"""The gradient of an embedding of 400,000 words is dense, although a batch uses 160 of them."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from marks import mark

REMEDY = bool(os.environ.get("REMEDY"))


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(400_000, 100, sparse=REMEDY)
        self.out = nn.Linear(100, 20)

    def forward(self, ids):
        return self.out(self.words(ids).mean(1))


torch.manual_seed(0)
model = Tagger()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
mark("imports")
for _ in range(60):
    ids, y = torch.randint(0, 400_000, (8, 20)), torch.randint(0, 20, (8,))
    mark("data")
    loss = F.cross_entropy(model(ids), y)
    mark("forward and loss")
    loss.backward()
    mark("backward")
    optimizer.step()
    mark("update")
    optimizer.zero_grad()
    mark("zero_grad")
