"""The replay memory stores camera images of bytes as 32-bit numbers, which take four times the memory.

Report: younggyoseo/pytorch-acer, issue 1 (also DLR-RM/stable-baselines3, issue 40).
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))


class Memory:
    """Rollouts of 8 environments."""

    def __init__(self, num_rollouts, num_steps):
        kind = torch.uint8 if REMEDY else torch.float32
        self.frames = torch.zeros(num_rollouts, num_steps + 1, 8, 2, 42, 42, dtype=kind)
        self.actions = torch.zeros(num_rollouts, num_steps, 8, dtype=torch.int64)
        self.rewards = torch.zeros(num_rollouts, num_steps, 8)
        self.size = 0

    def store(self, frames, actions, rewards):
        self.frames[self.size], self.actions[self.size], self.rewards[self.size] = frames, actions, rewards
        self.size += 1

    def sample(self):
        chosen = int(torch.randint(0, self.size, ()))
        return self.frames[chosen].float() / 255, self.actions[chosen], self.rewards[chosen]


class Agent(nn.Module):
    """Logits of actions and the value of a state."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 16, 6, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(1600, 64),
                                  nn.ReLU())
        self.actor, self.critic = nn.Linear(64, 6), nn.Linear(64, 1)

    def forward(self, frames):
        hidden = self.body(frames)
        return self.actor(hidden), self.critic(hidden).squeeze(1)


torch.manual_seed(0)
agent, memory = Agent(), Memory(320, 16)
optimizer = torch.optim.RMSprop(agent.parameters(), 1e-4)
start = time.perf_counter()
for _ in range(320):
    frames = torch.randint(0, 256, (17, 8, 2, 42, 42), dtype=torch.uint8)
    memory.store(frames, torch.randint(0, 6, (16, 8)), torch.rand(16, 8))
    for _ in range(3):
        frames, actions, rewards = memory.sample()
        logits, values = agent(frames[:-1].flatten(0, 1))
        advantages = rewards.flatten() - values
        loss = (F.cross_entropy(logits, actions.flatten(), reduction="none") * advantages.detach()).mean()
        loss = loss + advantages.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
