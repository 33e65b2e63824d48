"""The latents of the same images are encoded in each epoch, although the encoder is frozen and nothing augments them.

Report: huggingface/diffusers, pull request 6076 (also invoke-ai/invoke-training, pull request 35).
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))


class Denoiser(nn.Module):
    """Predicts the noise of noisy latents."""

    def __init__(self):
        super().__init__()
        self.first, self.time = nn.Conv2d(4, 64, 3, 1, 1), nn.Linear(1, 64)
        self.blocks = nn.ModuleList(nn.Sequential(nn.GroupNorm(8, 64), nn.SiLU(), nn.Conv2d(64, 64, 3, 1, 1))
                                    for _ in range(4))
        self.last = nn.Conv2d(64, 4, 3, 1, 1)

    def forward(self, noisy, levels):
        x = self.first(noisy) + self.time(levels[:, None])[:, :, None, None]
        for block in self.blocks:
            x = x + block(x)
        return self.last(x)


torch.manual_seed(0)
encoder = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.SiLU(), nn.Conv2d(32, 64, 3, 1, 1), nn.SiLU(),
                        nn.Conv2d(64, 64, 3, 2, 1), nn.SiLU(), nn.Conv2d(64, 64, 3, 2, 1), nn.SiLU(),
                        nn.Conv2d(64, 4, 1)).eval().requires_grad_(False)
denoiser = Denoiser()
optimizer = torch.optim.AdamW(denoiser.parameters(), 1e-3, fused=True)
images = torch.rand(96, 3, 128, 128)
start = time.perf_counter()
latents = torch.cat([encoder(chunk) for chunk in images.split(8)]) if REMEDY else None
for _ in range(8):
    for chosen in torch.randperm(len(images)).split(8):
        clean = encoder(images[chosen]) if latents is None else latents[chosen]
        levels, noise = torch.rand(len(chosen)), torch.randn_like(clean)
        noisy = torch.lerp(clean, noise, levels[:, None, None, None])
        loss = F.mse_loss(denoiser(noisy, levels), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
