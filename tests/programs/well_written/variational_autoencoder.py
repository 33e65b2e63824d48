"""A variational autoencoder; its loss is read once an epoch."""

import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 2 * 32))
        self.decoder = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 784))

    def forward(self, images):
        mean, log_variance = self.encoder(images).chunk(2, 1)
        code = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        return self.decoder(code), mean, log_variance


torch.manual_seed(0)
torch.set_num_threads(2)
images = torch.rand(6400, 784)
model = Autoencoder()
optimizer = torch.optim.Adam(model.parameters(), 1e-3, fused=True)
start = time.perf_counter()
for _ in range(20):
    total = torch.zeros(())
    for chosen in torch.randperm(len(images)).split(256):
        batch = images[chosen]
        decoded, mean, log_variance = model(batch)
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()
        loss = (F.binary_cross_entropy_with_logits(decoded, batch, reduction="sum") + divergence) / len(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
    print(f"mean loss {total.item() / 25:.1f}")
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
