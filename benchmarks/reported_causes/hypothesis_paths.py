"""Beam search follows the back pointers of all hypotheses at each step, to get their tokens so far.

Report: jadore801120/attention-is-all-you-need-pytorch, issue 77.
"""

import os
import time

import torch
import torch.nn as nn

REMEDY = bool(os.environ.get("REMEDY"))


class Beam:
    """Best hypotheses of one sentence."""

    def __init__(self, size, vocabulary):
        self.size, self.vocabulary = size, vocabulary
        self.scores = torch.zeros(size)
        self.tokens, self.parents = [torch.zeros(size, dtype=torch.long)], []
        self.paths = torch.zeros(size, 1, dtype=torch.long)

    def advance(self, logits):
        totals = (self.scores[:, None] + logits.log_softmax(1)).flatten()
        self.scores, best = totals.topk(self.size)
        parents, tokens = best // self.vocabulary, best % self.vocabulary
        self.parents.append(parents)
        self.tokens.append(tokens)
        if REMEDY:
            self.paths = torch.cat([self.paths[parents], tokens[:, None]], 1)

    def hypothesis(self, number):
        path = []
        for step in range(len(self.parents) - 1, -1, -1):
            path.append(self.tokens[step + 1][number].item())
            number = self.parents[step][number].item()
        return [0, *reversed(path)]

    def current(self):
        if REMEDY:
            return self.paths
        return torch.tensor([self.hypothesis(number) for number in range(self.size)])


class Decoder(nn.Module):
    """Logits of the next token, from the last tokens of a target and the source."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(1000, 64)
        self.layer = nn.TransformerDecoderLayer(64, 4, 128, batch_first=True)
        self.out = nn.Linear(64, 1000)

    def forward(self, targets, memory):
        return self.out(self.layer(self.embedding(targets[:, -16:]), memory)[:, -1])


def translate(decoder, memory, length):
    """Return the best translation of a sentence."""
    beam = Beam(8, 1000)
    for _ in range(length):
        beam.advance(decoder(beam.current(), memory))
    return beam.current()[0]


torch.manual_seed(0)
decoder = Decoder().eval()
start = time.perf_counter()
with torch.inference_mode():
    for _ in range(20):
        tokens = translate(decoder, torch.randn(1, 20, 64).expand(8, -1, -1), 120)
print(f"loop: {time.perf_counter() - start:.3f} s, {len(tokens)} tokens, mean {tokens.float().mean():.1f}")
