"""Predictions of a model that is never trained; `--grad` forgets to turn gradients off."""

import sys

import torch
from sleepy import SleepyModel, sleepy_loader
from truth import Truth

truth = Truth()
model = SleepyModel().eval()
with torch.set_grad_enabled("--grad" in sys.argv):
    for x, _ in truth.batches(sleepy_loader(6), "infer"):
        with truth("forward"):
            outputs = model(x)
        print(f"{outputs.sum().item():.6f}")
truth.write()
