"""A replay memory of one million transitions is a deque, whose middle can only be reached from its ends.

Report: ageron/handson-ml, pull request 204.
"""

import os
import random
import time
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))
CAPACITY = 1_000_000


def transitions():
    """Yield states, actions and rewards."""
    for index in range(CAPACITY):
        yield (index % 97 / 97, index % 89 / 89, index % 83 / 83, index % 79 / 79), index % 4, index % 2


random.seed(0)
torch.manual_seed(0)
memory = list(transitions()) if REMEDY else deque(transitions(), maxlen=CAPACITY)
model = nn.Sequential(nn.Linear(4, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))
optimizer = torch.optim.Adam(model.parameters(), 1e-4, fused=True)
start = time.perf_counter()
for _ in range(1000):
    batch = [memory[random.randrange(CAPACITY)] for _ in range(64)]
    states = torch.tensor([state for state, _, _ in batch])
    actions = torch.tensor([action for _, action, _ in batch])
    rewards = torch.tensor([float(reward) for _, _, reward in batch])
    values = model(states).gather(1, actions[:, None])[:, 0]
    loss = F.smooth_l1_loss(values, rewards)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
