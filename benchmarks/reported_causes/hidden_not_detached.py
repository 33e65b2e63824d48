"""The hidden state is handed to the next step with its graph, so that each backward runs through all earlier steps.

Report: pytorch/pytorch, issue 2769.
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))


class Reader(nn.Module):
    """Trained embeddings and output of a frozen recurrent network."""

    def __init__(self):
        super().__init__()
        self.embedding, self.out = nn.Embedding(1000, 64), nn.Linear(128, 1000)
        self.cell = nn.LSTMCell(64, 128).requires_grad_(False)

    def forward(self, ids, state):
        losses = []
        for moment in range(ids.shape[1] - 1):
            state = self.cell(self.embedding(ids[:, moment]), state)
            losses.append(F.cross_entropy(self.out(state[0]), ids[:, moment + 1]))
        return torch.stack(losses).mean(), state


torch.manual_seed(0)
model = Reader()
optimizer = torch.optim.SGD([*model.embedding.parameters(), *model.out.parameters()], 0.1)
state = torch.zeros(16, 128), torch.zeros(16, 128)
start = time.perf_counter()
for _ in range(40):
    if REMEDY:
        state = state[0].detach(), state[1].detach()
    loss, state = model(torch.randint(0, 1000, (16, 9)), state)
    optimizer.zero_grad()
    loss.backward(retain_graph=not REMEDY)
    optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
