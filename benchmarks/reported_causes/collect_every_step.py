"""The garbage collector runs after each step, and walks over all records of the data set.

Report: huggingface/peft, pull request 2894.
"""

import gc
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))

torch.manual_seed(0)
records = [{"id": index, "tags": [index % 7], "length": index % 90} for index in range(100_000)]
model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.05)
images, labels = torch.randn(4096, 128), torch.randint(0, 10, (4096,))
start = time.perf_counter()
for _ in range(40):
    chosen = torch.randint(0, 4096, (1024,))
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images[chosen]), labels[chosen])
    loss.backward()
    optimizer.step()
    if not REMEDY:
        gc.collect()
print(f"loop: {time.perf_counter() - start:.3f} s, {len(records)} records, loss {loss.item():.3f}")
