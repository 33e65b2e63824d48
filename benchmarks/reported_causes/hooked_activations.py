"""Hooks store the activations for a backward that never comes, as the evaluation runs in training mode.

Report: meta-pytorch/opacus, issue 176.
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))


def store_activations(layer, inputs, output):
    """Append the layer's input, which the backward hook takes off again."""
    if layer.training:
        layer.activations.append(inputs[0].detach())


def take_activations(layer, gradients_in, gradients_out):
    """Compute the norm of each sample's gradient."""
    inputs = layer.activations.pop()
    layer.norms = inputs.norm(dim=1) * gradients_out[0].norm(dim=1)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
for layer in model:
    if isinstance(layer, nn.Linear):
        layer.activations = []
        layer.register_forward_hook(store_activations)
        layer.register_full_backward_hook(take_activations)
optimizer = torch.optim.SGD(model.parameters(), 0.05)
images, labels = torch.randn(4096, 256), torch.randint(0, 10, (4096,))
start = time.perf_counter()
for _ in range(12):
    for first in range(0, 4096, 128):
        batch = images[first:first + 128] + 0.1 * torch.randn(128, 256)
        loss = F.cross_entropy(model(batch), labels[first:first + 128])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if REMEDY:
        model.eval()
    with torch.no_grad():
        for first in range(0, 4096, 128):
            validation_loss = F.cross_entropy(model(images[first:first + 128] * 1.0), labels[first:first + 128])
    model.train()
print(f"loop: {time.perf_counter() - start:.3f} s, validation loss {validation_loss.item():.3f}")
