"""Batches made by worker processes, slower than they are used: the loop waits for them."""

from sleepy import SleepyModel, SleepySGD, sleepy_loader
from torch.nn import functional
from truth import Truth

truth = Truth()
model = SleepyModel()
optimizer = SleepySGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in truth.batches(sleepy_loader(5, num_workers=2, prefetch_factor=1)):
        with truth("forward"):
            outputs = model(x)
        with truth("loss"):
            loss = functional.cross_entropy(outputs, y)
        with truth("backward"):
            loss.backward()
        with truth("update"):
            optimizer.step()
            optimizer.zero_grad()
    print(f"epoch {epoch}: {loss.item():.6f}")
truth.write()
