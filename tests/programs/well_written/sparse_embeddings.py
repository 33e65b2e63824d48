"""Embeddings of 200,000 words with sparse gradients, and a dense network behind them."""

import time

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(2)
words = nn.EmbeddingBag(200_000, 64, mode="mean", sparse=True)
network = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 20))
model = nn.Sequential(words, network)
sparse_optimizer = torch.optim.SGD(words.parameters(), 0.1)
optimizer = torch.optim.AdamW(network.parameters(), 1e-3, fused=True)
documents, topics = torch.randint(0, 200_000, (25_600, 12)), torch.randint(0, 20, (25_600,))
start = time.perf_counter()
for _ in range(8):
    for chosen in torch.randperm(len(documents)).split(512):
        loss = F.cross_entropy(model(documents[chosen]), topics[chosen])
        sparse_optimizer.zero_grad()
        optimizer.zero_grad()
        loss.backward()
        sparse_optimizer.step()
        optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
