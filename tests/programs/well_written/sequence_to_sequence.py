"""Translation between synthetic languages, with teacher forcing over whole sequences."""

import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.source, self.target = nn.Embedding(400, 96), nn.Embedding(400, 96)
        self.encoder, self.decoder = nn.GRU(96, 160, batch_first=True), nn.GRU(96, 160, batch_first=True)
        self.out = nn.Linear(160, 400)

    def forward(self, source, target):
        _, state = self.encoder(self.source(source))
        return self.out(self.decoder(self.target(target), state)[0])


torch.manual_seed(0)
torch.set_num_threads(2)
source, target = torch.randint(0, 400, (2048, 24)), torch.randint(0, 400, (2048, 25))
model = Translator()
optimizer = torch.optim.Adam(model.parameters(), fused=True)
start = time.perf_counter()
for _ in range(3):
    for chosen in torch.randperm(len(source)).split(64):
        logits = model(source[chosen], target[chosen, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), target[chosen, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
