"""Sampling from the replay buffer copies all that it holds, so that a step takes longer as the buffer fills.

Report: TianhongDai/hindsight-experience-replay, issue 1.
"""

import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))


class Buffer:
    """Episodes of 50 steps."""

    def __init__(self, num_episodes):
        self.size = 0
        self.arrays = {"states": np.zeros((num_episodes, 50, 24), np.float32),
                       "actions": np.zeros((num_episodes, 50, 4), np.float32)}
        self.random = np.random.default_rng(0)

    def store(self, states, actions):
        for key, values in (("states", states), ("actions", actions)):
            self.arrays[key][self.size:self.size + len(values)] = values
        self.size += len(states)

    def sample(self, num_transitions):
        held = {key: array[:self.size] if REMEDY else array[:self.size].copy() for key, array in self.arrays.items()}
        episode = self.random.integers(0, self.size, num_transitions)
        moment = self.random.integers(0, 50, num_transitions)
        return {key: torch.from_numpy(array[episode, moment]) for key, array in held.items()}


torch.manual_seed(0)
random = np.random.default_rng(1)
buffer = Buffer(4000)
model = nn.Sequential(nn.Linear(24, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))
optimizer = torch.optim.Adam(model.parameters(), 1e-3, fused=True)
start = time.perf_counter()
for _ in range(500):
    buffer.store(random.random((8, 50, 24), np.float32), random.random((8, 50, 4), np.float32))
    batch = buffer.sample(256)
    loss = F.mse_loss(model(batch["states"]), batch["actions"])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
