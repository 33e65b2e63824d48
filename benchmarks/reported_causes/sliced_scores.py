"""The sliced score matching loss draws one projection after another.

Report: soran-ghaderi/torchebm, pull request 80.
"""

import os
import time

import torch
import torch.nn as nn

REMEDY = bool(os.environ.get("REMEDY"))


class Energy(nn.Module):
    """Energy of points."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 1))

    def forward(self, points):
        return self.layers(points).squeeze(-1)


def projected(model, points, directions):
    """Return the loss of points for one direction each."""
    points = points.detach().requires_grad_(True)
    score = -torch.autograd.grad(model(points).sum(), points, create_graph=True)[0]
    along = (score * directions).sum(-1)
    second = torch.autograd.grad(along.sum(), points, create_graph=True)[0]
    return (second * directions).sum(-1) + 0.5 * along**2


def matching_loss(model, points, num_projections):
    """Return the sliced score matching loss."""
    if REMEDY:
        repeated = points.repeat(num_projections, 1)
        return projected(model, repeated, torch.randn_like(repeated)).mean()
    total = 0.0
    for _ in range(num_projections):
        total = total + projected(model, points, torch.randn_like(points)).mean()
    return total / num_projections


torch.manual_seed(0)
torch.set_num_threads(1)
model = Energy()
optimizer = torch.optim.Adam(model.parameters(), 1e-3, fused=True)
data = torch.randn(4096, 8)
start = time.perf_counter()
for _ in range(200):
    points = data[torch.randint(0, len(data), (16,))]
    loss = matching_loss(model, points, 12)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
