"""A loss on distances between all pairs of points expands each pair, and then takes the norms.

Report: SeonghwanSeo/kfold, pull request 308.
"""

import os
import time

import torch
import torch.nn as nn

REMEDY = bool(os.environ.get("REMEDY"))


def distances(points, centers):
    """Return the distance of each point from each center."""
    if REMEDY:
        return torch.cdist(points, centers)
    return (points[:, None, :] - centers[None, :, :]).norm(dim=-1)


torch.manual_seed(0)
torch.set_num_threads(1)
encoder = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32))
centers = nn.Parameter(torch.randn(512, 32))
optimizer = torch.optim.Adam([*encoder.parameters(), centers], 1e-3, fused=True)
data = torch.randn(4096, 16)
start = time.perf_counter()
for _ in range(240):
    points = encoder(data[torch.randint(0, len(data), (256,))])
    loss = distances(points, centers).min(dim=1).values.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
