"""The backbone is frozen by leaving it out of the optimizer, so that its gradients are still computed.

Report: ServiceNow/seasonal-contrast, issue 6 (also Mayukhdeb/torch-dreams, issue 14).
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))


class Detector(nn.Module):
    """A pretrained encoder and a new head."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                                     nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                                     nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 1, 1))

    def forward(self, images):
        return self.head(self.encoder(images))


torch.manual_seed(0)
model = Detector()
if REMEDY:
    model.encoder.requires_grad_(False)
optimizer = torch.optim.Adam(model.head.parameters(), fused=True)
images, masks = torch.randn(16, 3, 64, 64), torch.rand(16, 1, 8, 8)
start = time.perf_counter()
for _ in range(120):
    optimizer.zero_grad()
    loss = F.binary_cross_entropy_with_logits(model(images), masks)
    loss.backward()
    optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
