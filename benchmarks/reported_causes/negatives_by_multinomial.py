"""Negative examples are drawn from all words by `multinomial` in each step, and without replacement.

Report: berenslab/contrastive-ne, issue 2.
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))
NUM_WORDS, BATCH, NEGATIVES = 200_000, 256, 16


class SkipGram(nn.Module):
    """Scores of word pairs."""

    def __init__(self):
        super().__init__()
        self.center = nn.Embedding(NUM_WORDS, 64, sparse=True)
        self.context = nn.Embedding(NUM_WORDS, 64, sparse=True)

    def forward(self, center, context):
        return torch.einsum("bd,bkd->bk", self.center(center), self.context(context))


torch.manual_seed(0)
model = SkipGram()
optimizer = torch.optim.SparseAdam(model.parameters(), 1e-3)
frequencies = torch.rand(NUM_WORDS) ** 3 + 1e-6
cumulated = frequencies.cumsum(0) / frequencies.sum()


def draw(number):
    """Return a number of words, more often frequent ones."""
    if REMEDY:
        return torch.searchsorted(cumulated, torch.rand(number)).clamp_(max=NUM_WORDS - 1)
    return torch.multinomial(frequencies, number, replacement=False)


start = time.perf_counter()
for _ in range(400):
    center, context = torch.randint(NUM_WORDS, (2, BATCH)).unbind()
    negatives = draw(BATCH * NEGATIVES).view(BATCH, NEGATIVES)
    scores = model(center, torch.cat([context[:, None], negatives], 1))
    loss = F.cross_entropy(scores, torch.zeros(BATCH, dtype=torch.long))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
