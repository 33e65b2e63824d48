"""Gradient checkpointing cannot be switched off, although the activations would fit many times over.

Report: Nerogar/OneTrainer, issue 40.
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

REMEDY = bool(os.environ.get("REMEDY"))


class Denoiser(nn.Module):
    """Residual convolutions."""

    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 3, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Sequential(nn.GroupNorm(4, 32), nn.SiLU(), nn.Conv2d(32, 32, 3, padding=1))
                                    for _ in range(6))

    def forward(self, images):
        hidden = self.enter(images)
        for block in self.blocks:
            hidden = hidden + (block(hidden) if REMEDY else checkpoint(block, hidden, use_reentrant=False))
        return self.leave(hidden)


torch.manual_seed(0)
model = Denoiser()
optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
start = time.perf_counter()
for _ in range(50):
    images, noise = torch.randn(8, 3, 40, 40), torch.randn(8, 3, 40, 40)
    optimizer.zero_grad()
    loss = F.mse_loss(model(images + noise), noise)
    loss.backward()
    optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
