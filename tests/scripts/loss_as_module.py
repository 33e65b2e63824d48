"""A loss written as a module: it has no weights and gives one number. The forward's last layers have none either."""

from sleepy import SleepyModel, SleepySGD, sleep, sleepy_loader
from torch import Tensor, nn
from truth import Truth


class SquaredHinge(nn.Module):
    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        sleep("loss")
        return (1 - outputs[0, labels]).clamp(min=0).pow(2).mean()


truth = Truth()
model, activation, criterion = SleepyModel(), nn.Tanh(), SquaredHinge()
optimizer = SleepySGD(model.parameters(), lr=0.1)
for x, y in truth.batches(sleepy_loader(6)):
    with truth("forward"):
        outputs = activation(model(x))
    with truth("loss"):
        loss = criterion(outputs, y)
    with truth("backward"):
        loss.backward()
    with truth("update"):
        optimizer.step()
        optimizer.zero_grad()
    print(f"{loss.item():.6f}")
truth.write()
