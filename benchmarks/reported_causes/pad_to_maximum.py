"""Texts of 20 to 60 tokens are padded to the 256 that the model could take, not to the longest of the batch.

Report: QData/TextAttack, issue 737.
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

REMEDY = bool(os.environ.get("REMEDY"))
MAXIMUM = 256


def collate(texts):
    """Return padded ids, their mask and the labels."""
    length = max(len(ids) for ids, _ in texts) if REMEDY else MAXIMUM
    input_ids = torch.zeros(len(texts), length, dtype=torch.long)
    for row, (ids, _) in enumerate(texts):
        input_ids[row, :len(ids)] = ids
    return {"input_ids": input_ids, "attention_mask": input_ids != 0}, torch.tensor([label for _, label in texts])


class Encoder(nn.Module):
    """Transformer with a classifier on the first token."""

    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(1000, 64), nn.Embedding(MAXIMUM, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
        self.layers, self.out = nn.TransformerEncoder(layer, 2), nn.Linear(64, 2)

    def forward(self, input_ids, attention_mask):
        hidden = self.tokens(input_ids) + self.positions.weight[:input_ids.shape[1]]
        return self.out(self.layers(hidden, src_key_padding_mask=~attention_mask)[:, 0])


torch.manual_seed(0)
texts = [(torch.randint(1, 1000, (int(length),)), index % 2)
         for index, length in enumerate(torch.randint(20, 61, (640,)))]
model = Encoder()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
start = time.perf_counter()
for batch, labels in DataLoader(texts, batch_size=16, collate_fn=collate):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(**batch), labels)
    loss.backward()
    optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
