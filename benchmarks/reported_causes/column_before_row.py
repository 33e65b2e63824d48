"""Each sample is taken from a column of the table, for which the whole column is converted to Python lists.

Report: huggingface/datasets, issue 6846 (also huggingface/lerobot, issue 2549).
"""

import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

REMEDY = bool(os.environ.get("REMEDY"))
NUM_ROWS = 800


class Column:
    """Lists of numbers in one array."""

    def __init__(self, rows):
        self.values = np.concatenate(rows)
        self.ends = np.cumsum([len(row) for row in rows])

    def __len__(self):
        return len(self.ends)

    def row(self, index):
        return self.values[self.ends[index - 1] if index else 0:self.ends[index]].tolist()


class Table:
    """Columns by name; a name gives a column's lists, a number gives a row."""

    def __init__(self, columns):
        self.columns = columns

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key):
        if isinstance(key, str):
            column = self.columns[key]
            return [column.row(index) for index in range(len(column))]
        return {name: column.row(key) for name, column in self.columns.items()}


class Reviews(Dataset):
    """Tokens and label of each review."""

    def __init__(self, table):
        self.table = table

    def __len__(self):
        return len(self.table)

    def __getitem__(self, index):
        if REMEDY:
            row = self.table[index]
            return torch.tensor(row["input_ids"]), row["label"][0]
        return torch.tensor(self.table["input_ids"][index]), self.table["label"][index][0]


class Classifier(nn.Module):
    """A convolution over the words, and the largest of each channel."""

    def __init__(self):
        super().__init__()
        self.words, self.filters = nn.Embedding(4000, 128), nn.Conv1d(128, 256, 5, padding=2)
        self.out = nn.Linear(256, 5)

    def forward(self, input_ids):
        return self.out(F.relu(self.filters(self.words(input_ids).transpose(1, 2))).amax(2))


def collate(samples):
    """Return padded ids and the labels."""
    return pad_sequence([ids for ids, _ in samples], batch_first=True), torch.tensor([label for _, label in samples])


def main():
    """Train for two epochs."""
    torch.manual_seed(0)
    source = np.random.default_rng(0)
    table = Table({"input_ids": Column([source.integers(1, 4000, source.integers(30, 90)) for _ in range(NUM_ROWS)]),
                   "label": Column([source.integers(0, 5, 1) for _ in range(NUM_ROWS)])})
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    loader = DataLoader(Reviews(table), batch_size=32, shuffle=True, collate_fn=collate)
    start = time.perf_counter()
    for _ in range(3):
        for input_ids, labels in loader:
            loss = F.cross_entropy(model(input_ids), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")


main()
