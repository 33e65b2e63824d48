"""The evaluation stores the logits of all words of the vocabulary, of which the accuracy needs the largest's index.

Report: huggingface/transformers, issue 15466 (also issue 12878).
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))
WORDS, MASK = 4000, 0


def mask_words(ids):
    """Return texts with a seventh of their words masked, and the mask."""
    is_masked = torch.rand(ids.shape) < 1 / 7
    return ids.masked_fill(is_masked, MASK), is_masked


@torch.no_grad()
def predict(model, texts):
    """Return what the model predicts for the texts."""
    model.eval()
    predictions = []
    for batch in texts.split(32):
        outputs = model(batch)
        if REMEDY:
            outputs = outputs.argmax(-1)
        predictions.append(outputs)
    model.train()
    return torch.cat(predictions)


def accuracy(predictions, labels, is_masked):
    """Return the share of masked words that are predicted right."""
    words = predictions if REMEDY else predictions.argmax(-1)
    return (words == labels)[is_masked].float().mean()


torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(96, 4, 192, 0.0, batch_first=True)
model = nn.Sequential(nn.Embedding(WORDS, 96), nn.TransformerEncoder(layer, 2), nn.Linear(96, WORDS))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
corpus, held_out = torch.randint(1, WORDS, (640, 32)), torch.randint(1, WORDS, (640, 32))
masked_held_out, is_held_out = mask_words(held_out)
start = time.perf_counter()
for _ in range(3):
    for batch in corpus.split(32):
        inputs, is_masked = mask_words(batch)
        loss = F.cross_entropy(model(inputs)[is_masked], batch[is_masked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    right = accuracy(predict(model, masked_held_out), held_out, is_held_out)
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}, accuracy {right.item():.4f}")
