"""Each step updates the vectors of all 300,000 words, although a batch has a few of them.

Report: pytorch/pytorch, issue 5309.
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))


class Tagger(nn.Module):
    """Tags of words."""

    def __init__(self):
        super().__init__()
        self.vectors = nn.Embedding(300_000, 100, sparse=REMEDY)
        self.reader = nn.GRU(100, 64, batch_first=True)
        self.out = nn.Linear(64, 12)

    def forward(self, words):
        return self.out(self.reader(self.vectors(words))[0])


torch.manual_seed(0)
model = Tagger()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
start = time.perf_counter()
for _ in range(80):
    words, tags = torch.randint(0, 300_000, (8, 30)), torch.randint(0, 12, (8, 30))
    loss = F.cross_entropy(model(words).flatten(0, 1), tags.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
