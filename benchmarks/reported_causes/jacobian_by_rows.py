"""The Jacobian of a batch, one row for each sample, is computed with one backward for each row.

Report: pytorch/pytorch, issue 23475.
"""

import os
import time

import torch
import torch.nn as nn
from torch.func import functional_call, grad, vmap

REMEDY = bool(os.environ.get("REMEDY"))

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))
parameters = dict(model.named_parameters())


def energy(values, point):
    """Return the network's output for a point."""
    return functional_call(model, values, (point[None],)).squeeze()


def jacobian(points):
    """Return the derivatives of all outputs with respect to all parameters, one row for each point."""
    if REMEDY:
        rows = vmap(grad(energy), (None, 0))({name: value.detach() for name, value in parameters.items()}, points)
        return torch.cat([row.flatten(1) for row in rows.values()], 1)
    outputs = model(points).squeeze(1)
    rows = []
    for output in outputs:
        gradients = torch.autograd.grad(output, list(parameters.values()), retain_graph=True)
        rows.append(torch.cat([gradient.flatten() for gradient in gradients]))
    return torch.stack(rows)


start = time.perf_counter()
for _ in range(40):
    points = torch.randn(256, 6)
    rows = jacobian(points)
    with torch.no_grad():
        errors = model(points).squeeze(1) - points.square().sum(1)
        step = rows.T @ torch.linalg.solve(rows @ rows.T + torch.eye(256), errors)
        for parameter, change in zip(parameters.values(),
                                     step.split([value.numel() for value in parameters.values()]), strict=True):
            parameter -= 0.3 * change.view_as(parameter)
print(f"loop: {time.perf_counter() - start:.3f} s, error {errors.square().mean().item():.3f}")
