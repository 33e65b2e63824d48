"""Each worker of the loader yields all texts of an iterable data set, so that an epoch has each text twice.

Report: huggingface/datasets, issue 3423 (also pytorch/pytorch, issue 30599).
"""

import json
import os
import random
import tempfile
import time
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

REMEDY = bool(os.environ.get("REMEDY"))
NUM_TOKENS, LENGTH = 800, 48


class ShardedTexts(IterableDataset):
    """Tokens of the texts in JSON files, file by file."""

    def __init__(self, folder):
        self.paths = sorted(folder.glob("*.jsonl"))

    def __iter__(self):
        worker = get_worker_info()
        paths = self.paths[worker.id::worker.num_workers] if REMEDY else self.paths
        for path in paths:
            with path.open() as file:
                for line in file:
                    yield torch.tensor(json.loads(line)["tokens"])


class LanguageModel(nn.Module):
    """Logits of the next token."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(NUM_TOKENS, 96)
        self.gru, self.head = nn.GRU(96, 128, batch_first=True), nn.Linear(128, NUM_TOKENS)

    def forward(self, tokens):
        return self.head(self.gru(self.embedding(tokens))[0])


def write_shards(folder):
    """Write 16 files of 80 texts."""
    source = random.Random(0)
    for shard in range(16):
        lines = (json.dumps({"tokens": [source.randrange(NUM_TOKENS) for _ in range(LENGTH)]}) for _ in range(80))
        (folder / f"{shard:02}.jsonl").write_text("\n".join(lines))


def main():
    """Train for two epochs."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        write_shards(Path(name))
        loader = DataLoader(ShardedTexts(Path(name)), batch_size=32, num_workers=2, persistent_workers=True)
        model = LanguageModel()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
        start = time.perf_counter()
        for _ in range(2):
            for tokens in loader:
                logits = model(tokens[:, :-1])
                loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")


main()
