"""The confusion matrix compares all pairs of classes with each sample of the batch.

Report: fastai/fastai, pull request 2516.
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))
NUM_CLASSES = 300


class ConfusionMatrix:
    """Counts of predicted by true classes."""

    def __init__(self):
        self.counts = torch.zeros(NUM_CLASSES, NUM_CLASSES)
        self.classes = torch.arange(NUM_CLASSES)

    def update(self, predicted, target):
        if REMEDY:
            pairs = torch.bincount(target * NUM_CLASSES + predicted, minlength=NUM_CLASSES**2)
            self.counts += pairs.view(NUM_CLASSES, NUM_CLASSES)
        else:
            is_predicted = predicted == self.classes[:, None]
            is_target = target == self.classes[:, None, None]
            self.counts += (is_predicted & is_target).sum(dim=2, dtype=torch.float32)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, NUM_CLASSES))
optimizer = torch.optim.SGD(model.parameters(), 0.05)
inputs, labels = torch.randn(4096, 128), torch.randint(0, NUM_CLASSES, (4096,))
matrix = ConfusionMatrix()
start = time.perf_counter()
for _ in range(120):
    chosen = torch.randint(0, 4096, (128,))
    logits = model(inputs[chosen])
    loss = F.cross_entropy(logits, labels[chosen])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    matrix.update(logits.argmax(1), labels[chosen])
print(f"loop: {time.perf_counter() - start:.3f} s, {int(matrix.counts.sum())} predictions")
