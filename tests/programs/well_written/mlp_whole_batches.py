"""A classifier of rows in memory: whole batches by one index, one fused optimizer."""

import time

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(2)
rows, labels = torch.randn(20_000, 256), torch.randint(0, 10, (20_000,))
model = nn.Sequential(nn.Linear(256, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 10))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
start = time.perf_counter()
for _ in range(10):
    for chosen in torch.randperm(len(rows)).split(500):
        loss = F.cross_entropy(model(rows[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
