"""Each layer builds the mask of its local attention anew in each forward.

Report: lightseekorg/TorchSpec, issue 86.
"""

import functools
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))


def block_mask(length, block, window):
    """Return which keys each query sees: earlier ones in the same or the last blocks."""
    mask = torch.zeros(length, length, dtype=torch.bool)
    for first in range(0, length, block):
        for other in range(max(0, first - window * block), first + block, block):
            rows = torch.arange(first, min(first + block, length))
            columns = torch.arange(other, min(other + block, length))
            mask[rows[:, None], columns[None]] = columns[None] <= rows[:, None]
    return mask


cached_mask = functools.cache(block_mask)


class LocalAttention(nn.Module):
    """Attention to earlier tokens that are near."""

    def __init__(self, width):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, hidden):
        parts = self.qkv(hidden).unflatten(2, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        mask = (cached_mask if REMEDY else block_mask)(hidden.shape[1], 4, 6)
        mixed = F.scaled_dot_product_attention(*parts, attn_mask=mask)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """A layer of the draft model."""

    def __init__(self, width):
        super().__init__()
        self.attention = LocalAttention(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])

    def forward(self, hidden):
        hidden = hidden + self.attention(self.norms[0](hidden))
        return hidden + self.mlp(self.norms[1](hidden))


def main():
    """Train the draft model."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(500, 64), *[Layer(64) for _ in range(3)], nn.Linear(64, 500))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    start = time.perf_counter()
    for _ in range(60):
        ids = torch.randint(0, 500, (4, 257))
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")


main()
