"""A small network whose memory and FLOP are worked out by hand."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from charact.datasets._common.request import DataRequest
from charact.execution.case import Case
from charact.workload.base import Workload

WIDTH = 256
_SGD = partial(torch.optim.SGD, lr=0.01, momentum=0.9)


@dataclass(kw_only=True)
class TwoLayers(Workload):
    """Linear, ReLU, Linear without biases; an input of `input_size` features."""

    name: str = "two_layers"
    source: str = "by hand"
    input_kind: str = "image"
    default_batch_size: int = 64
    default_input_size: int = 512
    smallest_input_size: int = 1
    fail_in: str | None = None
    optimizer: Any = _SGD

    def dataset(self, input_size: int, request: DataRequest) -> Dataset[Any]:
        torch.manual_seed(request.seed)
        return TensorDataset(torch.randn(256, input_size), torch.randint(0, 10, (256,)))

    def model(self, dataset: Any) -> nn.Module:
        num_features = dataset[0][0].numel()
        return nn.Sequential(nn.Linear(num_features, WIDTH, bias=False), nn.ReLU(), nn.Linear(WIDTH, 10, bias=False))

    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        if self.fail_in == "forward":
            raise ValueError("the model\nis broken")
        if self.fail_in == "memory":
            torch.empty(2**55)
        return model(batch[0])

    def loss(self, outputs: Tensor, batch: Any) -> Tensor:
        return functional.cross_entropy(outputs, batch[1])

    def optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        return [self.optimizer(model.parameters())]


def small_case(mode: str = "train", *, batch_size: int = 64, workload: Workload | None = None,
               **options: Any) -> Case:
    """A case of a small workload on the CPU."""
    workload = (workload or TwoLayers()).prepare()
    return Case(workload, workload.default_input_size, batch_size, mode, options.pop("precision", "fp32"),
                torch.device("cpu"), DataRequest(), **options)
