"""An optimizer a parameter, each stepping in the backward as soon as its gradient is there; it goes on after that."""

from sleepy import SleepyModel, SleepySGD, sleepy_loader, slow_backward
from torch import Tensor
from torch.nn import functional
from truth import Truth

truth = Truth()
model = SleepyModel()
optimizers = {parameter: SleepySGD([parameter], lr=0.1) for parameter in model.parameters()}


def update(parameter: Tensor) -> None:
    with truth("update"):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(update)
for x, y in truth.batches(sleepy_loader(6)):
    with truth("forward"):
        outputs = model(slow_backward(x.requires_grad_()))
    with truth("loss"):
        loss = functional.cross_entropy(outputs, y)
    with truth("backward"):
        loss.backward()
    print(f"{loss.item():.6f}")
truth.write()
