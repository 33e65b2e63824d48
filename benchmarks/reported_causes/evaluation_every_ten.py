"""After each ten steps, which see 640 samples, 1,000 samples are evaluated.

Report: databrickslabs/dolly, pull request 31.
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))
EVAL_STEPS = 100 if REMEDY else 10


@torch.no_grad()
def evaluate(model, inputs, targets):
    """Return the mean loss over all samples."""
    model.eval()
    losses = [F.cross_entropy(model(inputs[first:first + 64]).flatten(0, 1), targets[first:first + 64].flatten())
              for first in range(0, len(inputs), 64)]
    model.train()
    return torch.stack(losses).mean()


torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True, dropout=0.0)
model = nn.Sequential(nn.Embedding(500, 64), nn.TransformerEncoder(layer, 2), nn.Linear(64, 500))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
ids, held_out = torch.randint(0, 500, (6400, 25)), torch.randint(0, 500, (1000, 25))
start = time.perf_counter()
for step in range(1, 101):
    batch = ids[(step - 1) * 64:step * 64]
    optimizer.zero_grad()
    loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    if step % EVAL_STEPS == 0:
        validation_loss = evaluate(model, held_out[:, :-1], held_out[:, 1:])
print(f"loop: {time.perf_counter() - start:.3f} s, validation loss {validation_loss.item():.3f}")
