"""The weights of each layer are normalized again in each call, although they do not change any more.

Report: jmschrei/cherimoya, pull request 8.
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))


class StandardizedLinear(nn.Module):
    """A linear layer whose weights have mean 0 and variance 1 in each row."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(outputs, inputs)), nn.Parameter(torch.zeros(outputs))
        self.ready = None

    def standardized(self):
        variance, mean = torch.var_mean(self.weight, 1, keepdim=True)
        return (self.weight - mean) / (variance * self.weight.shape[1] + 1e-6).sqrt()

    def forward(self, inputs):
        if REMEDY and not self.training:
            if self.ready is None:
                self.ready = self.standardized()
            return F.linear(inputs, self.ready, self.bias)
        return F.linear(inputs, self.standardized(), self.bias)


class Ranker(nn.Module):
    """Scores of candidates."""

    def __init__(self):
        super().__init__()
        self.first, self.second = StandardizedLinear(1024, 1024), StandardizedLinear(1024, 1024)
        self.third, self.out = StandardizedLinear(1024, 1024), StandardizedLinear(1024, 1)

    def forward(self, inputs):
        hidden = F.gelu(self.first(inputs))
        hidden = hidden + F.gelu(self.second(hidden))
        return self.out(hidden + F.gelu(self.third(hidden))).squeeze(1)


torch.manual_seed(0)
torch.set_num_threads(1)
model = Ranker().eval()
total = 0.0
start = time.perf_counter()
with torch.inference_mode():
    for _ in range(120):
        total += model(torch.randn(8, 1024)).sum().item()
print(f"loop: {time.perf_counter() - start:.3f} s, total {total:.3f}")
