"""The attention computes its maps, which nobody reads, and therefore not with the fused kernel.

Report: lyuwenyu/RT-DETR, issue 678.
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))


class DecoderLayer(nn.Module):
    """Attention among the queries of a detector."""

    def __init__(self):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(64, 8, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(64), nn.LayerNorm(64)
        self.linear1, self.linear2 = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, target):
        attended, _ = self.self_attn(target, target, target, need_weights=not REMEDY)
        target = self.norm1(target + attended)
        return self.norm2(target + self.linear2(F.relu(self.linear1(target))))


class Detector(nn.Module):
    """Boxes from image features and queries."""

    def __init__(self):
        super().__init__()
        self.features = nn.Conv2d(3, 64, 16, stride=16)
        self.layers = nn.ModuleList(DecoderLayer() for _ in range(3))
        self.boxes = nn.Linear(64, 4)

    def forward(self, images):
        target = self.features(images).flatten(2).transpose(1, 2)
        for layer in self.layers:
            target = layer(target)
        return self.boxes(target).sigmoid()


torch.manual_seed(0)
model = Detector()
optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
start = time.perf_counter()
for _ in range(30):
    images, boxes = torch.rand(2, 3, 384, 384), torch.rand(2, 576, 4)
    loss = F.l1_loss(model(images), boxes)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
