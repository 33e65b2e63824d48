"""The model calls its item network once per step of the history, instead of once for all steps.

Report: facebookresearch/tbsm, pull request 1.
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))


class ItemNetwork(nn.Module):
    """Vectors of items from their categories and features."""

    def __init__(self):
        super().__init__()
        self.category = nn.Embedding(500, 16)
        self.top = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, categories, features):
        return self.top(torch.cat([self.category(categories), features], -1))


class Recommender(nn.Module):
    """Scores of a candidate item, given the history of a user."""

    def __init__(self):
        super().__init__()
        self.items = ItemNetwork()
        self.score = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, categories, features):
        if REMEDY:
            vectors = self.items(categories, features)
        else:
            vectors = torch.stack([self.items(categories[:, step], features[:, step])
                                   for step in range(categories.shape[1])], 1)
        last, history = vectors[:, -1:], vectors[:, :-1]
        weights = F.softmax(history @ last.transpose(1, 2), 1)
        return self.score(torch.cat([(weights * history).sum(1), last.squeeze(1)], -1)).squeeze(-1)


torch.manual_seed(0)
model = Recommender()
optimizer = torch.optim.Adagrad(model.parameters(), 0.01)
start = time.perf_counter()
for _ in range(900):
    categories, features = torch.randint(0, 500, (64, 21)), torch.randn(64, 21, 8)
    clicked = torch.randint(0, 2, (64,)).float()
    loss = F.binary_cross_entropy_with_logits(model(categories, features), clicked)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
