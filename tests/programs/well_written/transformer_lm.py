"""A small language model: fused attention without a materialized mask, tokens in one tensor."""

import time

import torch
import torch.nn as nn
import torch.nn.functional as F

WIDTH, HEADS, LENGTH = 128, 4, 64


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        rows, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(rows, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(rows, length, WIDTH))
        return x + self.mlp(self.norm2(x))


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks, self.head = nn.Sequential(Block(), Block(), Block()), nn.Linear(WIDTH, 256)

    def forward(self, ids):
        return self.head(self.blocks(self.tokens(ids) + self.positions.weight))


torch.manual_seed(0)
torch.set_num_threads(2)
text = torch.randint(0, 256, (100_000,))
window = torch.arange(LENGTH + 1)
model = LanguageModel()
optimizer = torch.optim.AdamW(model.parameters(), 3e-4, fused=True)
start = time.perf_counter()
for _ in range(120):
    ids = text[torch.randint(0, len(text) - LENGTH, (24, 1)) + window]
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
