"""At each new word, the trigrams of a text, which must not be repeated, are collected again from its first word on.

Report: microsoft/fastseq, pull request 18 (also facebookresearch/fairseq, issue 3582).
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))
WORDS = 400


class Writer(nn.Module):
    """A language model with a GRU."""

    def __init__(self):
        super().__init__()
        self.embedding, self.gru = nn.Embedding(WORDS, 64), nn.GRU(64, 192, batch_first=True)
        self.out = nn.Linear(192, WORDS)

    def forward(self, ids, state=None):
        hidden, state = self.gru(self.embedding(ids), state)
        return self.out(hidden), state


class TrigramFilter:
    """Words that would repeat a trigram of a text."""

    def __init__(self):
        self.followers, self.num_seen = {}, 0

    def banned(self, text):
        """Return the words that have followed the last two words before."""
        if not REMEDY:
            self.followers, self.num_seen = {}, 0
        for place in range(self.num_seen, len(text) - 2):
            self.followers.setdefault((text[place], text[place + 1]), []).append(text[place + 2])
        self.num_seen = max(len(text) - 2, 0)
        return self.followers.get((text[-2], text[-1]), [])


@torch.no_grad()
def generate(model, prompts, length):
    """Continue each prompt with the most likely words."""
    texts, filters = prompts.tolist(), [TrigramFilter() for _ in prompts]
    logits, state = model(prompts)
    for _ in range(length):
        scores = logits[:, -1]
        for row, text in enumerate(texts):
            scores[row, filters[row].banned(text)] = -torch.inf
        words = scores.argmax(1, keepdim=True)
        for text, word in zip(texts, words.flatten().tolist(), strict=True):
            text.append(word)
        logits, state = model(words, state)
    return texts


torch.manual_seed(0)
model = Writer()
optimizer = torch.optim.Adam(model.parameters(), 0.003, fused=True)
corpus = torch.randint(0, WORDS, (32 * 25 * 4, 21))
start = time.perf_counter()
for epoch in range(4):
    for batch in corpus.view(4, 25, 32, 21)[epoch]:
        loss = F.cross_entropy(model(batch[:, :-1])[0].flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    texts = generate(model, corpus[:32, :5], 320)
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}, last words {texts[0][-3:]}")
