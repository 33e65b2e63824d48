"""Weights that are updated by hand, without an optimizer: a backward is what makes an iteration."""

import torch
from sleepy import SleepyModel, sleep
from truth import Truth

truth = Truth()
model = torch.nn.Sequential(SleepyModel(), torch.nn.LogSoftmax(dim=1))
criterion = torch.nn.NLLLoss()
for number in range(6):
    truth.begin()
    model.zero_grad()
    with truth("forward"):
        outputs = model(torch.full((1, 4), number / 10))
    with truth("loss"):
        loss = criterion(outputs, torch.tensor([number % 3]))
    with truth("backward"):
        loss.backward()
    with truth("other"):  # the update: without a loader nothing tells it from making the next batch
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for parameter in model.parameters():
            parameter.data.add_(parameter.grad, alpha=-0.1)
        sleep("update")
    print(f"{loss.item():.6f}")
model.eval()
with torch.no_grad():
    truth.begin("infer")
    with truth("forward"):
        outputs = model(torch.ones(1, 4))
truth.write()
