"""The attention over a history scores one time step after another.

Report: facebookresearch/tbsm, pull request 1.
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))


class Ranker(nn.Module):
    """Embeds the items of a history, weighs them by the last one, and predicts a click."""

    def __init__(self):
        super().__init__()
        self.items, self.shops = nn.Embedding(2000, 16, sparse=True), nn.Embedding(500, 16, sparse=True)
        self.bottom = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 15))
        self.top = nn.Sequential(nn.Linear(40, 32), nn.ReLU(), nn.Linear(32, 1))

    def embed(self, items, shops):
        return self.bottom(torch.cat([self.items(items), self.shops(shops)], -1))

    def forward(self, items, shops):
        last = self.embed(items[:, -1], shops[:, -1])
        if REMEDY:
            history = self.embed(items[:, :-1], shops[:, :-1])
            scores = (history * last[:, None]).sum(-1)
        else:
            columns = []
            for step in range(items.shape[1] - 1):
                embedded = self.embed(items[:, step], shops[:, step])
                columns.append((embedded * last).sum(-1))
            scores = torch.stack(columns, 1)
        return self.top(scores).squeeze(1)


torch.manual_seed(0)
torch.set_num_threads(1)
model = Ranker()
dense = [each for name, each in model.named_parameters() if name.split(".")[0] not in ("items", "shops")]
optimizers = (torch.optim.SGD([model.items.weight, model.shops.weight], 0.1), torch.optim.SGD(dense, 0.1))
start = time.perf_counter()
for _ in range(260):
    items, shops = torch.randint(0, 2000, (64, 41)), torch.randint(0, 500, (64, 41))
    clicks = (items[:, -1] % 2).float()
    loss = F.binary_cross_entropy_with_logits(model(items, shops), clicks)
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
