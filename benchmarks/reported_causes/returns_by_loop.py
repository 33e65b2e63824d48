"""The returns of a text's tokens are summed in a loop over the tokens, although the discount is 1.

Report: NVIDIA-NeMo/labs-molt, issue 28 (also THUDM/slime, pull request 2205).
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))
GAMMA = 1.0


class Policy(nn.Module):
    """Logits of the next token."""

    def __init__(self):
        super().__init__()
        self.tokens, self.out = nn.Embedding(200, 48), nn.Linear(48, 200)
        self.mix = nn.Conv1d(48, 48, 5)

    def forward(self, ids):
        hidden = self.mix(F.pad(self.tokens(ids).transpose(1, 2), (4, 0)))
        return self.out(F.relu(hidden).transpose(1, 2))


def returns_of(rewards):
    """Return the sum of the later rewards of each token."""
    if REMEDY and GAMMA == 1:
        return rewards.flip(1).cumsum(1).flip(1)
    returns, running = torch.zeros_like(rewards), torch.zeros(len(rewards))
    for moment in reversed(range(rewards.shape[1])):
        running = rewards[:, moment] + GAMMA * running
        returns[:, moment] = running
    return returns


torch.manual_seed(0)
policy = Policy()
optimizer = torch.optim.AdamW(policy.parameters(), 1e-3, fused=True)
start = time.perf_counter()
for _ in range(70):
    ids = torch.randint(0, 200, (2, 4000))
    log_probs = F.log_softmax(policy(ids[:, :-1]), -1).gather(2, ids[:, 1:, None]).squeeze(2)
    rewards = -0.01 * (log_probs.detach() + 5.3)
    rewards[:, -1] += torch.rand(2)
    returns = returns_of(rewards)
    advantages = (returns - returns.mean()) / (returns.std() + 1e-6)
    loss = -(advantages * log_probs).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
