"""A watcher computes a histogram of each weight and each gradient in each step.

Report: wandb/wandb, issue 3701.
"""

import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))


class Watcher:
    """Histograms of a model's weights and gradients."""

    def __init__(self, model, every):
        self.model, self.every, self.history = model, every, {}

    def log(self, step):
        if step % self.every:
            return
        for name, parameter in self.model.named_parameters():
            for kind, values in (("weight", parameter.detach()), ("gradient", parameter.grad)):
                self.history[kind, name] = np.histogram(values.numpy(), bins=64)


torch.manual_seed(0)
layers = [layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.GELU())]
model = nn.Sequential(*layers, nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.05)
watcher = Watcher(model, every=100 if REMEDY else 1)
images, labels = torch.randn(4096, 256), torch.randint(0, 10, (4096,))
start = time.perf_counter()
for step in range(100):
    chosen = torch.randint(0, 4096, (512,))
    loss = F.cross_entropy(model(images[chosen]), labels[chosen])
    optimizer.zero_grad()
    loss.backward()
    watcher.log(step)
    optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
