"""The mask of shifted windows is computed in each forward pass, although it depends on the image's size only.

Report: JingyunLiang/SwinIR, issue 35.
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))
SIDE, WINDOW, SHIFT, WIDTH = 32, 8, 4, 32


def windows_of(x):
    """Return windows of 8 by 8 pixels."""
    rows = x.view(x.shape[0], SIDE // WINDOW, WINDOW, SIDE // WINDOW, WINDOW, x.shape[-1])
    return rows.permute(0, 1, 3, 2, 4, 5).reshape(-1, WINDOW * WINDOW, x.shape[-1])


def shifted_mask():
    """Return the mask that keeps pixels apart which only the shift brought together."""
    region = torch.zeros(1, SIDE, SIDE, 1)
    for row in range(SIDE):
        for column in range(SIDE):
            edges = (row >= SIDE - WINDOW) + (row >= SIDE - SHIFT), (column >= SIDE - WINDOW) + (column >= SIDE - SHIFT)
            region[0, row, column, 0] = 3 * edges[0] + edges[1]
    region = windows_of(region).squeeze(-1)
    return (region[:, None] != region[:, :, None]).float() * -100


class Block(nn.Module):
    """Attention within shifted windows."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mask = shifted_mask() if REMEDY else None

    def forward(self, x):
        mask = self.mask if self.mask is not None else shifted_mask()
        q, k, v = self.qkv(windows_of(torch.roll(x, (-SHIFT, -SHIFT), (1, 2)))).chunk(3, -1)
        attended = F.scaled_dot_product_attention(q, k, v, mask.repeat(len(x), 1, 1))
        return x + self.out(attended).view_as(x)


torch.manual_seed(0)
model = nn.Sequential(Block(), Block())
optimizer = torch.optim.Adam(model.parameters(), fused=True)
start = time.perf_counter()
for _ in range(120):
    images = torch.randn(2, SIDE, SIDE, WIDTH)
    optimizer.zero_grad()
    loss = F.l1_loss(model(images), images)
    loss.backward()
    optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
