"""Forward and loss under autocast."""

import torch
from sleepy import SleepyModel, SleepySGD, sleepy_loader
from truth import Truth

truth = Truth()
model = SleepyModel()
criterion = torch.nn.CrossEntropyLoss()
optimizer = SleepySGD(model.parameters(), lr=0.1)
for x, y in truth.batches(sleepy_loader(6)):
    with truth("update"):
        optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with truth("forward"):
            outputs = model(x)
        with truth("loss"):
            loss = criterion(outputs, y)
    with truth("backward"):
        loss.backward()
    with truth("update"):
        optimizer.step()
    print(f"{loss.item():.6f}")
truth.write()
