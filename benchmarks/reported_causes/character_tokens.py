"""The data set looks up each character of a text whenever the text is fetched, in every epoch again.

Report: fastai/fastai, issue 3276.
"""

import os
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

REMEDY = bool(os.environ.get("REMEDY"))
ALPHABET = "ARNDCQEGHILKMFPSTWYV"


class Proteins(Dataset):
    """Sequences of amino acids with a class each."""

    def __init__(self, num_sequences, length):
        self.texts = [" ".join(random.choices(ALPHABET, k=length)) for _ in range(num_sequences)]
        self.vocabulary = {character: index for index, character in enumerate(ALPHABET)}
        self.ids = torch.stack([self.encode(text) for text in self.texts]) if REMEDY else None

    def encode(self, text):
        ids = []
        for token in text.split(" "):
            ids.append(self.vocabulary[token.upper().strip()])
        return torch.tensor(ids)

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        ids = self.ids[index] if self.ids is not None else self.encode(self.texts[index])
        return ids, index % 2


class Classifier(nn.Module):
    """Convolution over embedded characters."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(len(ALPHABET), 32)
        self.convolution, self.out = nn.Conv1d(32, 32, 5, padding=2), nn.Linear(32, 2)

    def forward(self, ids):
        return self.out(F.relu(self.convolution(self.embedding(ids).transpose(1, 2))).amax(2))


random.seed(0)
torch.manual_seed(0)
model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), fused=True)
loader = DataLoader(Proteins(3000, 200), batch_size=64, shuffle=True)
start = time.perf_counter()
for _ in range(6):
    for ids, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids), labels)
        loss.backward()
        optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
