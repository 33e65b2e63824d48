"""Each request wraps the layers of a model in a further adapter, so that requests take longer and longer.

Report: rohitgandikota/sliders, issue 100.
"""

import os
import time

import torch
import torch.nn as nn

REMEDY = bool(os.environ.get("REMEDY"))


class Adapter(nn.Module):
    """A layer and a low-rank change of it."""

    def __init__(self, layer, width):
        super().__init__()
        self.layer, self.down, self.up = layer, nn.Linear(width, 8, bias=False), nn.Linear(8, width, bias=False)
        self.scale = 1.0

    def forward(self, x):
        return self.layer(x) + self.scale * self.up(self.down(x))


class Net(nn.Module):
    """Denoises a latent in some steps."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(8))

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


def add_slider(net, scale):
    """Set the strength of a slider."""
    for number, layer in enumerate(net.layers):
        if REMEDY and isinstance(layer, Adapter):
            layer.scale = scale
        else:
            net.layers[number] = Adapter(layer, 512)


torch.manual_seed(0)
net = Net().eval()
start = time.perf_counter()
with torch.no_grad():
    for request in range(90):
        add_slider(net, request / 100)
        latent = torch.randn(64, 512)
        for _ in range(4):
            latent = net(latent)
        latent.mean().item()
print(f"loop: {time.perf_counter() - start:.3f} s")
