"""Weight decay has made many weights of a trained network so small that they are denormal numbers.

Report: Deep-MI/FastSurfer, issue 165 (also lukemelas/EfficientNet-PyTorch, issue 39).
"""

import os
import time

import torch
import torch.nn as nn

REMEDY = bool(os.environ.get("REMEDY"))


def load_trained(model):
    """Load weights whose channels without a gradient have faded by weight decay."""
    state = model.state_dict()
    for name, weight in state.items():
        if weight.dim() == 4 and name != "0.weight":
            faded = torch.rand(len(weight)) < 0.4
            weight[faded] *= 1e-38
    model.load_state_dict(state)


torch.manual_seed(0)
if REMEDY:
    torch.set_flush_denormal(True)
model = nn.Sequential(nn.Conv2d(7, 32, 3, padding=1), nn.PReLU(32), nn.Conv2d(32, 32, 3, padding=1), nn.PReLU(32),
                      nn.Conv2d(32, 32, 3, padding=1), nn.PReLU(32), nn.Conv2d(32, 20, 1)).eval()
load_trained(model)
labels = []
start = time.perf_counter()
with torch.inference_mode():
    for _ in range(40):
        slices = torch.rand(2, 7, 40, 40)
        labels.append(model(slices).argmax(1).to(torch.uint8))
print(f"loop: {time.perf_counter() - start:.3f} s, mean label {torch.cat(labels).float().mean().item():.3f}")
