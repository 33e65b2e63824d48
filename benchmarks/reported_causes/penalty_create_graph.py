"""A gradient penalty calls backward with create_graph=True, so that each batch and its gradient hold each other.

Report: pytorch/pytorch, issue 4661.
"""

import os
import time

import torch
import torch.nn as nn

REMEDY = bool(os.environ.get("REMEDY"))

torch.manual_seed(0)
critic = nn.Sequential(nn.Linear(2048, 256), nn.Softplus(), nn.Linear(256, 256), nn.Softplus(), nn.Linear(256, 1))
optimizer = torch.optim.Adam(critic.parameters(), 1e-4, fused=True)
start = time.perf_counter()
for _ in range(300):
    batch = torch.randn(128, 2048, requires_grad=True)
    scores = critic(batch)
    if REMEDY:
        gradient, = torch.autograd.grad(scores.sum(), batch, create_graph=True)
    else:
        scores.sum().backward(create_graph=True)
        gradient = batch.grad
    penalty = (gradient.norm(dim=1) - 1).square().mean()
    optimizer.zero_grad()
    penalty.backward()
    optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, penalty {penalty.item():.3f}")
