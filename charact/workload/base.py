"""Base class of workloads: a model with its data, loss and optimizer. The runner owns the loop, phases and devices."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self

from charact.core.errors import UserError
from charact.datasets._common.request import DataRequest

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.utils.data import Dataset

    from charact.workload.generation import Generator
    from charact.workload.metrics import Metric


@dataclass(kw_only=True)
class Workload(ABC):
    """A model with its data, loss and optimizer: fields for facts, and five methods to implement.

    A file in `workloads/` (or a module named by an entry point of the group `charact.workloads`) has its workloads in a
    list named `WORKLOADS`. Each loop over a case runs on its own copy (`prepare`), so a workload may keep state between
    iterations in its attributes.
    """

    name: str
    source: str
    """Publication of the model."""
    year: int | None = None
    """Year of that publication; None if there is no paper."""
    input_kind: Literal["image", "sequence", "lookups", "other"]
    """What the input size is: the side of an image, the length of a sequence, or lookups per sparse feature."""
    default_batch_size: int
    aliases: tuple[str, ...] = ()
    variants: tuple[str, ...] = ("default",)
    """Forms of the model for `--variant`; the first is the default."""
    variant: str = ""
    padding_index: int | None = None
    """Index of padding among the tokens; None if there is no padding."""

    def prepare(self, variant: str | None = None) -> Self:
        """Return a copy for one case, with the requested variant.

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
        """Side length in pixels, sequence length, or lookups per sparse feature of the published variant."""

    @property
    @abstractmethod
    def smallest_input_size(self) -> int:
        """Smallest input size that the variant's layers allow."""

    @property
    def input_size_step(self) -> int:
        """Number of which every input size is a multiple, such as the side of a patch; by default 1."""
        return 1

    @property
    def longest_input_size(self) -> int | None:
        """Largest input size, together with the outputs of a generation; None if there is none."""
        return None

    @property
    def generates(self) -> bool:
        """Whether there is a `generator`."""
        return type(self).generator is not Workload.generator

    @property
    def caches(self) -> tuple[str, ...]:
        """Kinds of caches that a generation may use, of `schema.CACHES`; the first is the default."""
        return "static", "growing", "int8"

    @abstractmethod
    def dataset(self, input_size: int, request: DataRequest) -> "Dataset[Any]":
        """Return samples at an input size. For images each is (float32 (3, size, size), int64 label).

        A dataset may have a method `collate(samples)` that creates a batch (default: PyTorch's), and an attribute
        `shuffled = False` if the order of samples is part of the data.

        Raises:
            UserError: the dataset is unknown, does not fit the workload, or its files are missing.
        """

    @abstractmethod
    def model(self, dataset: "Dataset[Any]") -> "nn.Module":
        """Return the model on the CPU in float32, with random weights; `dataset` has the number of classes or words."""

    @abstractmethod
    def forward(self, model: "nn.Module", batch: Any) -> Any:
        """Return the outputs of the model for a batch on the model's device."""

    def tokens(self, batch: Any) -> "list[Tensor]":
        """Return the indices of tokens that the model reads of a batch, each position once; by default none."""
        return []

    @abstractmethod
    def loss(self, outputs: Any, batch: Any) -> "Tensor":
        """Return the scalar loss of the outputs."""

    @abstractmethod
    def optimizers(self, model: "nn.Module") -> "list[Optimizer]":
        """Return the optimizers with the published settings; all of them step in every iteration."""

    def generator(self, model: "nn.Module", output_size: int, cache: str) -> "Generator":
        """Return a generation with the model, in evaluation mode, of at most `output_size` words for each prompt.

        Batches are those of `dataset`, and its input size is the length of the prompts. `cache` is one of
        `caches`; a model without keys and values takes no notice of it. By default there is none.
        """
        raise NotImplementedError(f"{self.name} does not generate")

    def clip_gradients(self, model: "nn.Module") -> None:  # noqa: B027  (most workloads clip nothing)
        """Clip the gradients in place, before the optimizers step, as published; by default not at all."""

    def schedulers(self, optimizers: "list[Optimizer]", num_epochs: int) -> "list[Any]":
        """Return the schedulers of `torch.optim.lr_scheduler`, stepped at the end of each epoch of a training.

        A `ReduceLROnPlateau` gets the validation loss. By default there are none.
        """
        return []

    def metrics(self, dataset: "Dataset[Any]") -> "list[Metric]":
        """Return new metrics of the task for one stage, in addition to the loss; the first one selects the best epoch.

        By default there are none, and the validation loss selects it.
        """
        return []

    def facts(self) -> dict[str, Any]:
        """Return additional facts for the record, after iterations have run; by default none."""
        return {}

    def start_epoch(self) -> None:  # noqa: B027  (most workloads keep nothing)
        """Reset the state from earlier batches, because the data start again. A new copy needs no reset."""
