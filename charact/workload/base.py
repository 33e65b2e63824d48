"""What a workload is: a model with its data, loss and optimizer. The loop, phases and devices belong to the runner."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from charact.core.errors import UserError
from charact.datasets._common.request import DataRequest

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.utils.data import Dataset

    from charact.workload.metrics import Metric


@dataclass(kw_only=True)
class Workload(ABC):
    """A model with its data, loss and optimizer: facts as fields, and five answers as methods.

    A file in `workloads/` (or a module named by an entry point of the group `charact.workloads`) holds its workloads
    in a list named `WORKLOADS`. Each loop over a case runs on a copy of its own (`prepare`), so a workload may keep
    state between iterations in its attributes.
    """

    name: str
    source: str
    """The publication that the model is taken from."""
    input_kind: Literal["image", "sequence", "other"]
    default_batch_size: int
    aliases: tuple[str, ...] = ()
    variants: tuple[str, ...] = ("default",)
    """Forms of the model that `--variant` chooses among; the first is the default."""
    variant: str = ""
    keeps_types: ClassVar[bool] = False
    """Whether the model computes in the types that it has, whatever a precision's weights are."""

    def prepare(self, variant: str | None = None) -> Self:
        """Copy for one case, in the variant asked for.

        Raises:
            UserError: the workload has no such variant.
        """
        chosen = variant or self.variants[0]
        if chosen not in self.variants:
            raise UserError(f"{self.name} has no variant '{chosen}': choose from {', '.join(self.variants)}")
        return replace(self, variant=chosen)

    @property
    @abstractmethod
    def default_input_size(self) -> int:
        """Side length in pixels or sequence length that the variant was published with."""

    @property
    @abstractmethod
    def smallest_input_size(self) -> int:
        """Smallest input size that the variant's layers allow."""

    @abstractmethod
    def dataset(self, input_size: int, request: DataRequest) -> "Dataset[Any]":
        """Samples at an input size. For images each is (float32 (3, size, size), int64 label).

        A dataset may have a method `collate(samples)` that makes a batch of them (default: PyTorch's), and an
        attribute `shuffled = False` where the samples' order is part of the data.

        Raises:
            UserError: the dataset asked for is unknown, does not fit the workload, or its files are not there.
        """

    @abstractmethod
    def model(self, dataset: "Dataset[Any]") -> "nn.Module":
        """Model on the CPU in float32, with random weights; the dataset tells the number of classes or words."""

    @abstractmethod
    def forward(self, model: "nn.Module", batch: Any) -> Any:
        """Outputs of the model for a batch that is on the model's device."""

    @abstractmethod
    def loss(self, outputs: Any, batch: Any) -> "Tensor":
        """Scalar loss of the outputs."""

    @abstractmethod
    def optimizers(self, model: "nn.Module") -> "list[Optimizer]":
        """Optimizers with the published settings; all of them step in every iteration."""

    def clip_gradients(self, model: "nn.Module") -> None:  # noqa: B027  (most workloads clip nothing)
        """Limit the gradients in place, before the optimizers step; as published, by default not at all."""

    def schedulers(self, optimizers: "list[Optimizer]", num_epochs: int) -> "list[Any]":
        """Learning-rate schedulers of `torch.optim.lr_scheduler`, stepped at the end of each epoch of a training.

        A `ReduceLROnPlateau` is told the validation's loss. By default there are none.
        """
        return []

    def metrics(self, dataset: "Dataset[Any]") -> "list[Metric]":
        """How well the task is done, besides the loss: fresh metrics for one stage; the first one chooses the best.

        By default there are none, and the loss of the validation chooses.
        """
        return []

    def facts(self) -> dict[str, Any]:
        """What the record is to tell besides the case's coordinates, once iterations have run; by default nothing."""
        return {}

    def start_epoch(self) -> None:  # noqa: B027  (most workloads keep nothing)
        """Forget what was kept from earlier batches: the data begin anew. A fresh copy need not be told."""
