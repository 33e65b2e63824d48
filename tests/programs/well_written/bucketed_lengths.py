"""Sentences of 10 to 60 words, in batches of equal length: hardly any padding."""

import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(1000, 96, padding_idx=0)
        layer = nn.TransformerEncoderLayer(96, 4, 256, dropout=0.0, batch_first=True)
        self.encoder, self.out = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(96, 2)

    def forward(self, ids):
        return self.out(self.encoder(self.embedding(ids)).mean(1))


torch.manual_seed(0)
torch.set_num_threads(2)
buckets = [(torch.randint(1, 1000, (256, length)), torch.randint(0, 2, (256,))) for length in range(10, 61, 10)]
batches = [batch for ids, labels in buckets for batch in zip(ids.split(32), labels.split(32), strict=True)]
model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
start = time.perf_counter()
for _ in range(4):
    for index in torch.randperm(len(batches)).tolist():
        ids, labels = batches[index]
        loss = F.cross_entropy(model(ids), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
