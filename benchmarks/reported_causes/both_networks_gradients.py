"""A step of the generator also computes the gradients of the discriminator, and the other way round.

Report: SKTBrain/DiscoGAN, issue 2.
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))


def discriminator():
    """Return a network that scores images."""
    return nn.Sequential(nn.Conv2d(3, 32, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(32, 64, 4, 2, 1), nn.LeakyReLU(0.2),
                         nn.Conv2d(64, 1, 8))


def generator():
    """Return a network that maps images to images of another domain."""
    return nn.Sequential(nn.Conv2d(3, 32, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(32, 64, 3, 1, 1), nn.LeakyReLU(0.2),
                         nn.Conv2d(64, 64, 3, 1, 1), nn.LeakyReLU(0.2),
                         nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh())


torch.manual_seed(0)
gen, dis = generator(), discriminator()
optim_gen = torch.optim.Adam(gen.parameters(), 2e-4, (0.5, 0.999), fused=True)
optim_dis = torch.optim.Adam(dis.parameters(), 2e-4, (0.5, 0.999), fused=True)
ones, zeros = torch.ones(32, 1, 1, 1), torch.zeros(32, 1, 1, 1)
start = time.perf_counter()
for step in range(100):
    images, targets = torch.rand(32, 3, 32, 32), torch.rand(32, 3, 32, 32)
    trains_dis = step % 2 == 0
    if REMEDY:
        gen.requires_grad_(not trains_dis)
        dis.requires_grad_(trains_dis)
    fake = gen(images)
    scores = dis(fake)
    if trains_dis:
        dis_loss = (F.binary_cross_entropy_with_logits(dis(targets), ones)
                    + F.binary_cross_entropy_with_logits(scores, zeros))
        optim_dis.zero_grad()
        dis_loss.backward()
        optim_dis.step()
    else:
        gen_loss = F.binary_cross_entropy_with_logits(scores, ones)
        optim_gen.zero_grad()
        gen_loss.backward()
        optim_gen.step()
print(f"loop: {time.perf_counter() - start:.3f} s, losses {dis_loss.item():.3f}, {gen_loss.item():.3f}")
