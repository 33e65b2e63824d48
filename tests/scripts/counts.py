"""Trains for a number of iterations, and prints a line for each; the last line is not ended.

Numbers after the first are of iterations before which it waits for a line of its input.
"""

import os
import sys

import torch
from sleepy import SleepyModel, sleepy_loader

model = SleepyModel()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number, (x, _) in enumerate(sleepy_loader(int(sys.argv[1]))):
    if str(number) in sys.argv[2:]:
        sys.stdin.readline()
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
    print(f"iteration {number} " + "-" * (number % 60), flush=True)
try:
    os.wait()
except ChildProcessError:
    print("no children", end="", flush=True)
