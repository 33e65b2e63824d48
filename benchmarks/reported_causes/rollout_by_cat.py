"""A rollout appends each step to the trajectory with torch.cat, which copies all earlier steps.

Report: pnnl/neuromancer, pull request 291.
"""

import os
import time

import torch
import torch.nn as nn

REMEDY = bool(os.environ.get("REMEDY"))
HORIZON = 240


class System(nn.Module):
    """A controller and the model of its plant in a closed loop."""

    def __init__(self):
        super().__init__()
        self.controller = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 8))
        self.plant = nn.Sequential(nn.Linear(56, 64), nn.ReLU(), nn.Linear(64, 48))

    def forward(self, data):
        steps = [data["x"][:, 0]]
        for moment in range(HORIZON):
            x = steps[-1] if REMEDY else data["x"][:, moment]
            u = self.controller(x)
            x_next = x + 0.05 * self.plant(torch.cat([x, u], 1))
            if REMEDY:
                steps.append(x_next)
            else:
                data["x"] = torch.cat([data["x"], x_next[:, None]], 1)
        if REMEDY:
            data["x"] = torch.stack(steps, 1)
        return data


torch.manual_seed(0)
system = System()
optimizer = torch.optim.Adam(system.controller.parameters(), 1e-3, fused=True)
system.plant.requires_grad_(False)
start = time.perf_counter()
for _ in range(10):
    data = system({"x": torch.randn(128, 1, 48)})
    loss = data["x"].square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
