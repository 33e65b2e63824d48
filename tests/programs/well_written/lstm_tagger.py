"""A tagger that runs whole sequences through nn.LSTM."""

import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(500, 64)
        self.lstm, self.out = nn.LSTM(64, 128, batch_first=True), nn.Linear(128, 12)

    def forward(self, ids):
        return self.out(self.lstm(self.embedding(ids))[0])


torch.manual_seed(0)
torch.set_num_threads(2)
sentences, tags = torch.randint(0, 500, (2048, 32)), torch.randint(0, 12, (2048, 32))
model = Tagger()
optimizer = torch.optim.Adam(model.parameters(), fused=True)
start = time.perf_counter()
for _ in range(9):
    for chosen in torch.randperm(len(sentences)).split(64):
        loss = F.cross_entropy(model(sentences[chosen]).flatten(0, 1), tags[chosen].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
