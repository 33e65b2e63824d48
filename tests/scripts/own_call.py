"""A model whose class has a `__call__` of its own, with work before and after the usual one."""

from sleepy import SleepyModel, SleepySGD, sleep, sleepy_loader
from torch import Tensor
from torch.nn import functional
from truth import Truth


class Called(SleepyModel):
    def __call__(self, x: Tensor) -> Tensor:
        sleep("forward")
        outputs = super().__call__(x)
        sleep("forward")
        return outputs


truth = Truth()
model = Called()
optimizer = SleepySGD(model.parameters(), lr=0.1)
for x, y in truth.batches(sleepy_loader(6)):
    with truth("forward"):
        outputs = model(x)
    with truth("loss"):
        loss = functional.cross_entropy(outputs, y)
    with truth("backward"):
        loss.backward()
    with truth("update"):
        optimizer.step()
        optimizer.zero_grad()
    print(f"{loss.item():.6f}")
truth.write()
