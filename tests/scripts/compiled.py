"""A model or a function that is compiled, for batches of several sizes; the first argument says how.

`break` breaks its graph in two, `inductor` compiles in earnest. It prints what the compiler did: graphs, operators in
them, graph breaks, frames, recompilations.
"""

import sys

import torch
from sleepy import SleepySGD, sleep
from torch import Tensor, nn
from torch._dynamo.utils import counters, get_compilation_metrics
from torch.nn import functional
from truth import Truth

num_operators: list[int] = []


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.layers(x.to(torch.float32))
        if "break" in sys.argv:
            torch._dynamo.graph_break()
        return self.criterion(x, y) + functional.mse_loss(x, torch.zeros_like(x))


def slow_backend(graph: torch.fx.GraphModule, inputs: list[Tensor]):
    sleep("forward")
    num_operators.append(sum(node.op in ("call_function", "call_module", "call_method") for node in graph.graph.nodes))

    assert graph.code  # it is generated now, not at the first call

    def run(*arguments: Tensor):
        sleep("forward")
        return graph.forward(*arguments)

    return run


truth = Truth()
model = Net()
backend = "inductor" if "inductor" in sys.argv else slow_backend
how = sys.argv[1]
if how == "model":
    compiled = torch.compile(model, backend=backend)
elif how == "method":
    model.compile(backend=backend)
    compiled = model
else:
    @torch.compile(backend=backend)
    def compiled(x: Tensor, y: Tensor) -> Tensor:
        return model(x, y)
optimizer = SleepySGD(model.parameters(), lr=0.1)
for number in range(8):
    size = 2 + number // 2
    x, y = torch.full((size, 4), size / 10, dtype=torch.float64), torch.arange(size) % 3
    truth.begin()
    with truth("update"):
        optimizer.zero_grad()
    with truth("forward"):
        loss = compiled(x, y)
    with truth("backward"):
        loss.backward()
    with truth("update"):
        optimizer.step()
    print(f"{loss.item():.6f}")
print(num_operators, dict(counters["graph_break"]), dict(counters["stats"]), dict(counters["frames"]))
print([(metrics.co_name, metrics.fail_type) for metrics in get_compilation_metrics()])
truth.write()
