"""A generative adversarial network whose critic sees detached images."""

import time

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(2)
generator = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 784))
critic = nn.Sequential(nn.Linear(784, 512), nn.LeakyReLU(0.2), nn.Linear(512, 1))
generator_optimizer = torch.optim.Adam(generator.parameters(), 2e-4, fused=True)
critic_optimizer = torch.optim.Adam(critic.parameters(), 2e-4, fused=True)
images = torch.rand(6400, 784)
start = time.perf_counter()
for _ in range(10):
    for chosen in torch.randperm(len(images)).split(256):
        fake = generator(torch.randn(len(chosen), 64))
        loss = F.softplus(critic(fake.detach())).mean() + F.softplus(-critic(images[chosen])).mean()
        critic_optimizer.zero_grad()
        loss.backward()
        critic_optimizer.step()
        critic.requires_grad_(False)
        generator_loss = F.softplus(-critic(fake)).mean()
        generator_optimizer.zero_grad()
        generator_loss.backward()
        generator_optimizer.step()
        critic.requires_grad_(True)
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
