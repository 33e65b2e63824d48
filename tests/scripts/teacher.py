"""A teacher without gradients in each iteration of training: it is part of the forward."""

import torch
from sleepy import SleepyModel, SleepySGD, sleepy_loader
from torch.nn import functional
from truth import Truth

truth = Truth()
teacher, student = SleepyModel().eval(), SleepyModel()
optimizer = SleepySGD(student.parameters(), lr=0.1)
for x, _ in truth.batches(sleepy_loader(6)):
    with torch.no_grad(), truth("forward", "teacher"):
        target = teacher(x)
    with truth("forward", "student"):
        outputs = student(x)
    with truth("loss", "student"):
        loss = functional.mse_loss(outputs, target)
    with truth("backward", "student"):
        loss.backward()
    with truth("update", "student"):
        optimizer.step()
        optimizer.zero_grad()
    print(f"{loss.item():.6f}")
truth.write()
