"""Beam search encodes the source once for each hypothesis.

Report: pytorch/translate, pull request 66.
"""

import os
import time

import torch
import torch.nn as nn

REMEDY = bool(os.environ.get("REMEDY"))


class Translator(nn.Module):
    """An encoder and a decoder with recurrent layers."""

    def __init__(self):
        super().__init__()
        self.source, self.target = nn.Embedding(4000, 128), nn.Embedding(4000, 128)
        self.encoder = nn.LSTM(128, 256, 2, batch_first=True, bidirectional=True)
        self.decoder = nn.LSTMCell(128, 512)
        self.out = nn.Linear(512, 4000)

    def encode(self, ids):
        states, _ = self.encoder(self.source(ids))
        return states.mean(1)

    def forward(self, tokens, state):
        state = self.decoder(self.target(tokens), state)
        return self.out(state[0]), state


def search(model, ids, beam_size, length):
    """Return the tokens and scores of the best hypotheses of each sentence."""
    batch = len(ids)
    if REMEDY:
        context = model.encode(ids).repeat_interleave(beam_size, 0)
    else:
        context = model.encode(ids.repeat_interleave(beam_size, 0))
    state, tokens = (context, torch.zeros_like(context)), torch.zeros(batch * beam_size, dtype=torch.long)
    scores = torch.zeros(batch, beam_size)
    for _ in range(length):
        logits, state = model(tokens, state)
        totals = scores[:, :, None] + logits.log_softmax(1).unflatten(0, (batch, beam_size))
        scores, best = totals.flatten(1).topk(beam_size)
        rows = (best // 4000 + torch.arange(batch)[:, None] * beam_size).flatten()
        state, tokens = tuple(part[rows] for part in state), (best % 4000).flatten()
    return tokens, scores


torch.manual_seed(0)
model = Translator().eval()
start = time.perf_counter()
with torch.no_grad():
    for _ in range(36):
        tokens, scores = search(model, torch.randint(0, 4000, (8, 60)), beam_size=6, length=8)
print(f"loop: {time.perf_counter() - start:.3f} s, score {scores.mean().item():.3f}")
