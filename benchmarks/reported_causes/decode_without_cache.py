"""Each new token of a text is predicted from the whole text, whose keys and values are computed again.

Report: karpathy/minGPT, issue 95 (also karpathy/nanoGPT, pull request 76).
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))
WIDTH, HEADS, LONGEST = 192, 6, 180


class Block(nn.Module):
    """Attention and a feed-forward network."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, past=None):
        heads = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = heads
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.feed(self.norm2(x)), (k, v)


class Model(nn.Module):
    """A small language model."""

    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(500, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(WIDTH, 500)

    def forward(self, ids, pasts=None):
        first = pasts[0][0].shape[2] if pasts else 0
        x = self.tokens(ids) + self.positions.weight[first:first + ids.shape[1]]
        pasts = pasts or [None] * len(self.blocks)
        for layer, block in enumerate(self.blocks):
            x, pasts[layer] = block(x, pasts[layer])
        return self.head(x[:, -1]), pasts


@torch.no_grad()
def generate(model, ids, num_tokens):
    """Return the ids with new ones behind them."""
    pasts = None
    for _ in range(num_tokens):
        if REMEDY:
            logits, pasts = model(ids if pasts is None else ids[:, -1:], pasts)
        else:
            logits, _ = model(ids)
        ids = torch.cat([ids, torch.multinomial(logits.softmax(-1), 1)], 1)
    return ids


torch.manual_seed(0)
model = Model().eval()
start = time.perf_counter()
for _ in range(2):
    ids = generate(model, torch.randint(0, 500, (4, 10)), 170)
print(f"loop: {time.perf_counter() - start:.3f} s, {ids.shape[1]} tokens")
