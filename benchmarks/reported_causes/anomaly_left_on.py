"""Anomaly detection was left on after debugging: each operator records a traceback, each gradient is searched for NaN.

Report: yenchenlin/nerf-pytorch, issue 42.
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))
torch.autograd.set_detect_anomaly(not REMEDY)


class Field(nn.Module):
    """Color and density of points."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(63, 64), *(nn.Linear(64, 64) for _ in range(7))])
        self.color, self.density = nn.Linear(64, 3), nn.Linear(64, 1)

    def forward(self, points):
        waves = [points] + [wave(points * 2.0**power) for power in range(10) for wave in (torch.sin, torch.cos)]
        hidden = torch.cat(waves, -1)
        for layer in self.layers:
            hidden = F.relu(layer(hidden))
        return torch.sigmoid(self.color(hidden)), F.relu(self.density(hidden))


def render(field, rays):
    """Integrate the color along each ray."""
    steps = torch.linspace(0, 1, 16)
    color, density = field(rays[:, None, :] * steps[None, :, None])
    opacity = 1 - torch.exp(-density[..., 0] / 16)
    weight = opacity * torch.cumprod(torch.cat([torch.ones(len(rays), 1), 1 - opacity[:, :-1]], 1), 1)
    return (weight[..., None] * color).sum(1)


torch.manual_seed(0)
field = Field()
optimizer = torch.optim.Adam(field.parameters(), 5e-4, fused=True)
start = time.perf_counter()
for _ in range(200):
    rays, target = torch.randn(64, 3), torch.rand(64, 3)
    optimizer.zero_grad()
    loss = F.mse_loss(render(field, rays), target)
    loss.backward()
    optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
