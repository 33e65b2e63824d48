"""Each batch is split into a dictionary for each sample, which the metrics collect.

Report: BiomedSciAI/fuse-med-ml, issue 267.
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

REMEDY = bool(os.environ.get("REMEDY"))


class Patients(Dataset):
    """Scans as vectors, with some clinical values and an identifier."""

    def __init__(self, number):
        self.scans, self.values = torch.randn(number, 256), torch.randn(number, 8, 16)
        self.labels = torch.randint(0, 2, (number,))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"scan": self.scans[index], "values": self.values[index], "label": self.labels[index], "id": index}


class Classifier(nn.Module):
    """Two encoders and a head."""

    def __init__(self):
        super().__init__()
        self.scan, self.values = nn.Linear(256, 256), nn.Linear(128, 256)
        self.head = nn.Linear(256, 2)

    def forward(self, batch):
        hidden = F.relu(self.scan(batch["scan"]) + self.values(batch["values"].flatten(1)))
        return self.head(hidden)


def split(batch):
    """Return the samples of a batch."""
    samples = []
    for index in range(len(batch["label"])):
        sample = {}
        for key, value in batch.items():
            sample[key] = value[index].detach().clone()
        samples.append(sample)
    return samples


class Accuracy:
    """Collects what an epoch's accuracy needs."""

    def __init__(self):
        self.logits, self.labels = [], []

    def add(self, batch):
        if REMEDY:
            self.logits.append(batch["logits"].detach())
            self.labels.append(batch["label"])
        else:
            for sample in split(batch):
                self.logits.append(sample["logits"][None])
                self.labels.append(sample["label"][None])

    def value(self):
        return (torch.cat(self.logits).argmax(1) == torch.cat(self.labels)).float().mean().item()


torch.manual_seed(0)
torch.set_num_threads(1)
model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), 1e-3, fused=True)
loader = DataLoader(Patients(6400), batch_size=64, shuffle=True)
start = time.perf_counter()
for epoch in range(6):
    accuracy = Accuracy()
    for batch in loader:
        batch["logits"] = model(batch)
        loss = F.cross_entropy(batch["logits"], batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        accuracy.add(batch)
    print(f"epoch {epoch}: accuracy {accuracy.value():.3f}")
print(f"loop: {time.perf_counter() - start:.3f} s")
