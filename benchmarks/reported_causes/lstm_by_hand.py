"""An LSTM cell of single operators is called for each moment of a sequence.

Report: pytorch/pytorch, issue 20060.
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))


class Cell(nn.Module):
    """One moment of an LSTM."""

    def __init__(self, num_inputs, width):
        super().__init__()
        self.inputs, self.hidden = nn.Linear(num_inputs, 4 * width), nn.Linear(width, 4 * width)

    def forward(self, x, state):
        hidden, memory = state
        enter, forget, candidate, leave = (self.inputs(x) + self.hidden(hidden)).chunk(4, 1)
        memory = torch.sigmoid(forget) * memory + torch.sigmoid(enter) * torch.tanh(candidate)
        return torch.sigmoid(leave) * torch.tanh(memory), memory


class Tagger(nn.Module):
    """Tags of the moments of a sequence."""

    def __init__(self):
        super().__init__()
        self.recurrent = nn.LSTM(32, 64, batch_first=True) if REMEDY else Cell(32, 64)
        self.out = nn.Linear(64, 8)

    def forward(self, sequences):
        if REMEDY:
            return self.out(self.recurrent(sequences)[0])
        state = sequences.new_zeros(len(sequences), 64), sequences.new_zeros(len(sequences), 64)
        outputs = []
        for moment in range(sequences.shape[1]):
            state = self.recurrent(sequences[:, moment], state)
            outputs.append(state[0])
        return self.out(torch.stack(outputs, 1))


torch.manual_seed(0)
model = Tagger()
optimizer = torch.optim.Adam(model.parameters(), fused=True)
start = time.perf_counter()
for _ in range(80):
    sequences, tags = torch.randn(16, 100, 32), torch.randint(0, 8, (16, 100))
    optimizer.zero_grad()
    loss = F.cross_entropy(model(sequences).flatten(0, 1), tags.flatten())
    loss.backward()
    optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
