"""A batch's states are a list of arrays, which torch.tensor reads number by number.

Report: pfnet/pfrl, issue 189 (also pytorch/pytorch, issue 13918).
"""

import os
import random
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))


class LineWorld:
    """A car that is to reach a point on a line, seen by 200 distance sensors."""

    def __init__(self):
        self.sensors, self.random = np.linspace(-1, 1, 200, dtype=np.float32), np.random.default_rng(0)

    def reset(self):
        self.place, self.num_steps = self.random.uniform(-1, 1), 0
        return self.observe()

    def observe(self):
        return np.exp(-8 * (self.sensors - np.float32(self.place)) ** 2)

    def step(self, action):
        self.place = float(np.clip(self.place + 0.1 * (action - 1), -1, 1))
        self.num_steps += 1
        return self.observe(), -abs(self.place), self.num_steps == 50


def collate(transitions):
    """Return tensors of the fields of some transitions."""
    states, actions, rewards, next_states, ends = zip(*transitions, strict=True)
    if REMEDY:
        states, next_states = np.stack(states), np.stack(next_states)
    return (torch.tensor(states), torch.tensor(actions), torch.tensor(rewards), torch.tensor(next_states),
            torch.tensor(ends, dtype=torch.float32))


torch.manual_seed(0)
random.seed(0)
world, memory = LineWorld(), []
model, target = (nn.Sequential(nn.Linear(200, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 3))
                 for _ in range(2))
optimizer = torch.optim.Adam(model.parameters(), 1e-3, fused=True)
state = world.reset()
start = time.perf_counter()
for step in range(1000):
    if step % 200 == 0:
        target.load_state_dict(model.state_dict())
    with torch.no_grad():
        action = random.randrange(3) if random.random() < 0.1 else int(model(torch.from_numpy(state)).argmax())
    next_state, reward, ends = world.step(action)
    memory.append((state, action, reward, next_state, ends))
    state = world.reset() if ends else next_state
    if len(memory) < 64:
        continue
    states, actions, rewards, next_states, ended = collate(random.sample(memory, 64))
    with torch.no_grad():
        values = rewards + 0.98 * (1 - ended) * target(next_states).amax(1)
    loss = F.smooth_l1_loss(model(states).gather(1, actions[:, None])[:, 0], values)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
