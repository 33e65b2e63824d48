"""Each metric of an evaluation runs the model on the whole validation set.

Report: NVIDIA-NeMo/Speech, pull request 70.
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

REMEDY = bool(os.environ.get("REMEDY"))


def outputs_of(model, loader):
    """Return logits and labels of a whole set."""
    model.eval()
    with torch.no_grad():
        pairs = [(model(features), labels) for features, labels in loader]
    model.train()
    return torch.cat([logits for logits, _ in pairs]), torch.cat([labels for _, labels in pairs])


def loss_of(logits, labels):
    """Return the cross-entropy."""
    return F.cross_entropy(logits, labels).item()


def accuracy_of(logits, labels):
    """Return the share of right classes."""
    return (logits.argmax(1) == labels).float().mean().item()


def top_five_of(logits, labels):
    """Return the share of labels among the five best classes."""
    return (logits.topk(5).indices == labels[:, None]).any(1).float().mean().item()


def entropy_of(logits, _):
    """Return the mean entropy of the predictions."""
    return torch.distributions.Categorical(logits=logits).entropy().mean().item()


METRICS = {"loss": loss_of, "accuracy": accuracy_of, "top 5": top_five_of, "entropy": entropy_of}


def evaluate(model, loader):
    """Return the value of each metric."""
    if REMEDY:
        both = outputs_of(model, loader)
        return {name: metric(*both) for name, metric in METRICS.items()}
    return {name: metric(*outputs_of(model, loader)) for name, metric in METRICS.items()}


torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Conv1d(40, 128, 5, 2), nn.ReLU(), nn.Conv1d(128, 128, 5, 2), nn.ReLU(),
                      nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(128, 35))
optimizer = torch.optim.Adam(model.parameters(), 1e-3, fused=True)
train = DataLoader(TensorDataset(torch.randn(640, 40, 98), torch.randint(0, 35, (640,))), 32, shuffle=True)
valid = DataLoader(TensorDataset(torch.randn(640, 40, 98), torch.randint(0, 35, (640,))), 64)
start = time.perf_counter()
for _ in range(6):
    for features, labels in train:
        optimizer.zero_grad()
        F.cross_entropy(model(features), labels).backward()
        optimizer.step()
    values = evaluate(model, valid)
print(f"loop: {time.perf_counter() - start:.3f} s, {values}")
