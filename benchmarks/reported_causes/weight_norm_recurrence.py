"""The weights of a recurrence are normalized again at each moment of a sequence, although they change once a step.

Report: pytorch/pytorch, issue 2176.
"""

import contextlib
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm

REMEDY = bool(os.environ.get("REMEDY"))


class MinimalGatedUnit(nn.Module):
    """A recurrent network with one gate and normalized weights."""

    def __init__(self, num_inputs, num_hidden):
        super().__init__()
        self.inputs = nn.Linear(num_inputs, 2 * num_hidden)
        self.gate = weight_norm(nn.Linear(num_hidden, num_hidden, bias=False))
        self.candidate = weight_norm(nn.Linear(num_hidden, num_hidden, bias=False))

    def forward(self, sequences):
        from_inputs = self.inputs(sequences)
        hidden = sequences.new_zeros(len(sequences), self.gate.in_features)
        for moment in range(sequences.shape[1]):
            gate_in, candidate_in = from_inputs[:, moment].chunk(2, 1)
            gate = torch.sigmoid(gate_in + self.gate(hidden))
            hidden = torch.lerp(hidden, torch.tanh(candidate_in + self.candidate(gate * hidden)), gate)
        return hidden


torch.manual_seed(0)
model = nn.Sequential(MinimalGatedUnit(40, 384), nn.Linear(384, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.05)
start = time.perf_counter()
for _ in range(40):
    sounds, labels = torch.randn(32, 50, 40), torch.randint(0, 10, (32,))
    with parametrize.cached() if REMEDY else contextlib.nullcontext():
        loss = F.cross_entropy(model(sounds), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
