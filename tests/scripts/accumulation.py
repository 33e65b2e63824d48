"""Gradients of three batches are summed before a step: an iteration is all three."""

from sleepy import SleepyModel, SleepySGD, sleepy_loader
from torch.nn import functional
from truth import Truth

NUM_SUMMED = 3

truth = Truth()
model = SleepyModel()
optimizer = SleepySGD(model.parameters(), lr=0.1)
for number, (x, y) in enumerate(truth.batches(sleepy_loader(4 * NUM_SUMMED), every=NUM_SUMMED), 1):
    with truth("forward"):
        outputs = model(x)
    with truth("loss"):
        loss = functional.cross_entropy(outputs, y) / NUM_SUMMED
    with truth("backward"):
        loss.backward()
    if number % NUM_SUMMED == 0:
        with truth("update"):
            optimizer.step()
            optimizer.zero_grad()
        print(f"{loss.item():.6f}")
truth.write()
