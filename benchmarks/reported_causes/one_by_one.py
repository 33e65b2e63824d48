"""The network is called for each sample of the batch, and the losses are stacked.

Report: entity-neural-network/incubator, pull request 15.
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))


class Policy(nn.Module):
    """Logits of actions from the entities of a scene."""

    def __init__(self):
        super().__init__()
        self.embed, self.body = nn.Linear(8, 64), nn.Linear(64, 64)
        self.norm, self.out = nn.LayerNorm(64), nn.Linear(64, 6)

    def forward(self, entities):
        return self.out(self.norm(F.relu(self.body(F.relu(self.embed(entities))).mean(-2))))


torch.manual_seed(0)
policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), 1e-3, fused=True)
start = time.perf_counter()
for _ in range(250):
    scenes, actions, rewards = torch.randn(64, 12, 8), torch.randint(0, 6, (64,)), torch.randn(64)
    logits = policy(scenes) if REMEDY else torch.stack([policy(scene) for scene in scenes])
    loss = (F.cross_entropy(logits, actions, reduction="none") * rewards).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
