"""The critic's backward also computes gradients of the generator, as its output is not detached."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from marks import mark

REMEDY = bool(os.environ.get("REMEDY"))

torch.manual_seed(0)
mark("imports")
generator = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 256))
critic = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 1))
generator_optimizer = torch.optim.Adam(generator.parameters(), 1e-4, fused=True)
critic_optimizer = torch.optim.Adam(critic.parameters(), 1e-4, fused=True)
for _ in range(100):
    z, real = torch.randn(256, 64), torch.randn(256, 256)
    mark("data")
    critic_optimizer.zero_grad()
    fake = generator(z)
    mark("generator's forward")
    scores = critic(fake.detach() if REMEDY else fake)
    critic_loss = F.softplus(scores).mean() + F.softplus(-critic(real)).mean()
    mark("critic's forward")
    critic_loss.backward()
    mark("critic's backward")
    critic_optimizer.step()
    mark("critic's update")
    generator_optimizer.zero_grad()
    generator_loss = F.softplus(-critic(generator(z))).mean()
    mark("second forward")
    generator_loss.backward()
    mark("generator's backward")
    generator_optimizer.step()
    mark("generator's update")
