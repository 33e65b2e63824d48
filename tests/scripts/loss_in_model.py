"""A model that computes its own loss where it is given labels, as Hugging Face's do."""

from types import SimpleNamespace

from sleepy import SleepyModel, SleepySGD, sleep, sleepy_loader
from torch import Tensor, nn
from torch.nn import functional
from truth import Truth

truth = Truth()


class ModelWithLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = SleepyModel()

    def forward(self, x: Tensor, labels: Tensor) -> SimpleNamespace:
        logits = self.inner(x)
        with truth("loss"):
            loss = functional.cross_entropy(logits, labels)
        sleep("loss")  # what follows the loss inside of the model is its forward again
        return SimpleNamespace(loss=loss, logits=logits)


model = ModelWithLoss()
optimizer = SleepySGD(model.parameters(), lr=0.1)
for x, y in truth.batches(sleepy_loader(6)):
    with truth("forward"):
        outputs = model(x, labels=y)
    with truth("backward"):
        outputs.loss.backward()
    with truth("update"):
        optimizer.step()
        optimizer.zero_grad()
    print(f"{outputs.loss.item():.6f}")
truth.write()
