"""Activations that are computed again in the backward (torch.utils.checkpoint): that is the backward's time."""

from sleepy import SleepyModel, SleepySGD, sleepy_loader
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from truth import Truth


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = SleepyModel()

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=False)


truth = Truth()
model = Checkpointed()
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
