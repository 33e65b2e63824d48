"""A batch computes the sum and the maximum of its sequences' lengths by Python's own functions.

Report: ray-project/ray, pull request 28388.
"""

import os
import time

import torch
import torch.nn as nn

REMEDY = bool(os.environ.get("REMEDY"))


class SampleBatch(dict):
    """Columns of a batch of experience."""

    def __init__(self, **columns):
        super().__init__(columns)
        lengths = self["seq_lens"]
        if REMEDY:
            self.max_len, self.count = int(lengths.max()), int(lengths.sum())
        else:
            self.max_len, self.count = int(max(lengths)), int(sum(lengths))

    def slices(self, size):
        for first in range(0, len(self["seq_lens"]), size):
            yield SampleBatch(**{name: column[first:first + size] for name, column in self.items()})


class Policy(nn.Module):
    """A recurrent policy."""

    def __init__(self):
        super().__init__()
        self.rnn, self.logits = nn.GRU(8, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, observations):
        return self.logits(self.rnn(observations)[0])


torch.manual_seed(0)
policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), 1e-3)
start = time.perf_counter()
for _ in range(32):
    lengths = torch.randint(1, 5, (8000,))
    batch = SampleBatch(obs=torch.randn(8000, 4, 8), actions=torch.randint(0, 4, (8000, 4)),
                        advantages=torch.randn(8000, 4), seq_lens=lengths)
    for part in batch.slices(2000):
        mask = torch.arange(4) < part["seq_lens"][:, None]
        log_probs = policy(part["obs"]).log_softmax(-1).gather(2, part["actions"][..., None]).squeeze(-1)
        loss = -(log_probs * part["advantages"] * mask).sum() / part.count
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
