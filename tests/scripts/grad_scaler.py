"""A gradient scaler that skips a step, since a gradient was infinite: the iteration counts no less."""

import torch
from sleepy import SleepyModel, SleepySGD, sleepy_loader
from torch.nn import functional
from truth import Truth

truth = Truth()
model = SleepyModel()
optimizer = SleepySGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for number, (x, y) in enumerate(truth.batches(sleepy_loader(6))):
    with truth("update"):
        optimizer.zero_grad()
    with truth("forward"):
        outputs = model(x)
    with truth("loss"):
        loss = functional.cross_entropy(outputs * (float("inf") if number == 2 else 1.0), y)
        scaled_loss = scaler.scale(loss)
    with truth("backward"):
        scaled_loss.backward()
    with truth("update"):
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    print(f"{loss.item():.6f} {scaler.get_scale()}")
truth.write()
