"""A loss written as a few operations between forward and backward."""

from sleepy import SleepyModel, SleepySGD, sleep, sleepy_loader
from truth import Truth

truth = Truth()
model = SleepyModel()
optimizer = SleepySGD(model.parameters(), lr=0.1)
for x, y in truth.batches(sleepy_loader(6)):
    with truth("forward"):
        outputs = model(x)
    with truth("loss"):
        loss = (outputs[0, y] - 1).pow(2).mean()
        sleep("loss")
    with truth("backward"):
        loss.backward()
    with truth("update"):
        optimizer.step()
        optimizer.zero_grad()
    print(f"{loss.item():.6f}")
truth.write()
