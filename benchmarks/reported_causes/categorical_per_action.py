"""The policy's loss creates a `Categorical` for each step of an episode, in a Python loop.

Report: entity-neural-network/incubator, issue 12.
"""

import os
import time

import torch
import torch.nn as nn
from torch.distributions import Categorical

REMEDY = bool(os.environ.get("REMEDY"))

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(32, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 6))
optimizer = torch.optim.Adam(policy.parameters(), 3e-4, fused=True)
start = time.perf_counter()
for _ in range(40):
    states, actions, returns = torch.randn(512, 32), torch.randint(6, (512,)), torch.randn(512)
    logits = policy(states)
    if REMEDY:
        chosen = Categorical(logits=logits)
        loss = -(chosen.log_prob(actions) * returns + 0.01 * chosen.entropy()).mean()
    else:
        terms = []
        for logit, action, value in zip(logits, actions, returns, strict=True):
            chosen = Categorical(logits=logit)
            terms.append(-(chosen.log_prob(action) * value + 0.01 * chosen.entropy()))
        loss = torch.stack(terms).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
