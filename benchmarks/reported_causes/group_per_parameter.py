"""The optimizer has one parameter group for each tensor, so that its fused kernel takes them one by one.

Report: roboflow/rf-detr, pull request 1409.
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))


def parameter_groups(model):
    """Return groups with the learning rate of each parameter: halved for the earlier layers."""
    groups = [{"params": [parameter], "lr": 1e-4 if int(name.split(".")[0]) < 100 else 2e-4}
              for name, parameter in model.named_parameters()]
    if not REMEDY:
        return groups
    rates = sorted({group["lr"] for group in groups})
    return [{"params": [group["params"][0] for group in groups if group["lr"] == rate], "lr": rate} for rate in rates]


torch.manual_seed(0)
layers = [layer for _ in range(100) for layer in (nn.Linear(32, 32), nn.LayerNorm(32))]
model = nn.Sequential(*layers, nn.Linear(32, 10))
optimizer = torch.optim.AdamW(parameter_groups(model), fused=True)
start = time.perf_counter()
for _ in range(150):
    inputs, labels = torch.randn(32, 32), torch.randint(0, 10, (32,))
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
