"""A model whose methods are called by themselves, one of them `forward`, with work between their submodules."""

from sleepy import SleepySGD, sleep, sleepy_loader
from torch import Tensor, nn
from torch.nn import functional
from truth import Truth


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def encode(self, x: Tensor) -> Tensor:
        sleep("forward")
        x = self.first(x)
        sleep("forward")
        x = self.second(x)
        sleep("forward")
        return x

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.last(x))
        sleep("forward")
        return x


truth = Truth()
model = Autoencoder()
optimizer = SleepySGD(model.parameters(), lr=0.1)
for number, (x, _) in enumerate(truth.batches(sleepy_loader(10))):
    with truth("forward"):
        outputs = model.forward(model.encode(x))
    with truth("loss"):
        loss = functional.mse_loss(outputs, x)
    with truth("backward"):
        loss.backward()
    with truth("update"):
        optimizer.step()
        optimizer.zero_grad()
    print(f"{number}: {loss.item():.6f}")
truth.write()
