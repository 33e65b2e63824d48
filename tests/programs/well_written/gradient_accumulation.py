"""Gradients of four batches are summed before an update, for a batch of 512 in the memory of 128."""

import time

import torch
import torch.nn as nn
import torch.nn.functional as F

ACCUMULATED = 4

torch.manual_seed(0)
torch.set_num_threads(2)
rows, labels = torch.randn(12_800, 512), torch.randint(0, 10, (12_800,))
model = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 10))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
start = time.perf_counter()
for _ in range(4):
    for step, chosen in enumerate(torch.randperm(len(rows)).split(128)):
        loss = F.cross_entropy(model(rows[chosen]), labels[chosen])
        (loss / ACCUMULATED).backward()
        if (step + 1) % ACCUMULATED == 0:
            optimizer.step()
            optimizer.zero_grad()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
