"""The loss of 112 concepts is a sum over concepts in Python.

Report: mvandenhi/SCBM, pull request 4.
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))
NUM_CONCEPTS = 112


class ConceptModel(nn.Module):
    """Concepts of a picture, and its class from them."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
                                     nn.AdaptiveAvgPool2d(4), nn.Flatten())
        self.concepts = nn.Linear(512, NUM_CONCEPTS)
        self.head = nn.Linear(NUM_CONCEPTS, 20)

    def forward(self, images):
        probabilities = torch.sigmoid(self.concepts(self.encoder(images)))
        return probabilities, self.head(probabilities)


class ConceptLoss(nn.Module):
    """Loss of the class and of the concepts that are known."""

    def forward(self, probabilities, logits, concepts, labels):
        if REMEDY:
            known = concepts >= 0
            losses = F.binary_cross_entropy(probabilities, concepts.clamp(min=0), reduction="none") * known
            total = (losses.sum(0) / known.sum(0).clamp(min=1)).sum()
        else:
            total = 0
            for number in range(NUM_CONCEPTS):
                known = concepts[:, number] >= 0
                if known.any():
                    total = total + F.binary_cross_entropy(probabilities[known, number], concepts[known, number])
        return F.cross_entropy(logits, labels) + total / NUM_CONCEPTS


class Trainer:
    """Trains the model."""

    def __init__(self):
        self.model, self.loss = ConceptModel(), ConceptLoss()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)

    def step(self, images, concepts, labels):
        loss = self.loss(*self.model(images), concepts, labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


torch.manual_seed(0)
trainer = Trainer()
start = time.perf_counter()
for _ in range(260):
    concepts = torch.randint(-1, 2, (64, NUM_CONCEPTS)).float()
    loss = trainer.step(torch.rand(64, 3, 24, 24), concepts, torch.randint(0, 20, (64,)))
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
