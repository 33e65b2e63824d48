"""What a workload is: a model with its data, loss and optimizer. The loop, phases and devices belong to the runner."""

import difflib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from charact.errors import UserError
from charact.plugins import modules_in

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.utils.data import Dataset

    from charact.metrics import Metric


@dataclass(frozen=True)
class Synthetic:
    """What made-up data look like, where it differs from the workload's default (None)."""

    num_classes: int | None = None
    """Kinds of pictures."""
    num_words: int | None = None
    """Size of the vocabulary, marks included; of both languages in translation."""
    zipf_exponent: float = 1.0
    """Word number k is as probable as k ** -exponent; 0 makes all alike."""
    length_mean_frac: float | None = None
    """Mean length of sentences or documents, as a share of the input size."""
    length_spread_frac: float | None = None
    """Standard deviation of their length, likewise; 0 makes all alike."""


@dataclass(frozen=True)
class DataRequest:
    """Which data a case is fed: a dataset's name, where its files are, and the seed of what is made up.

    The batch size is for text that is cut into as many parallel streams; samples do not depend on it otherwise.
    """

    name: str = "synthetic"
    directory: Path | None = None
    split: Literal["train", "valid", "test"] = "train"
    seed: int = 0
    batch_size: int = 1
    synthetic: Synthetic = Synthetic()


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


@dataclass(kw_only=True)
class ImageClassification(Workload):
    """What image classifiers share: labelled square pictures, cross-entropy, SGD with momentum.

    Source: learning rate .1, momentum .9, weight decay 5e-4 is the CIFAR-10 recipe of kuangliu/pytorch-cifar; an
    optimizer's cost does not depend on these values.
    """

    input_kind: Literal["image", "sequence"] = "image"
    variants: tuple[str, ...] = ("imagenet", "cifar")

    @property
    def default_input_size(self) -> int:
        """Side length in pixels of the variant's published data set."""
        return 32 if self.variant == "cifar" else 224

    @property
    def num_synthetic_classes(self) -> int:
        """Number of classes where the data are made up: that of the variant's published data set."""
        return 10 if self.variant == "cifar" else 1000

    def dataset(self, input_size: int, request: DataRequest) -> "Dataset[Any]":
        """Labelled pictures of 3 channels, (float32 (3, size, size), int64)."""
        from charact.data import image_dataset

        return image_dataset(request, input_size=input_size, num_synthetic_classes=self.num_synthetic_classes)

    def forward(self, model: "nn.Module", batch: Any) -> Any:
        """Logits, (batch, classes)."""
        return model(batch[0])

    def loss(self, outputs: Any, batch: Any) -> "Tensor":
        """Cross-entropy of the logits against the labels."""
        from torch.nn import functional

        return functional.cross_entropy(outputs, batch[1])

    def optimizers(self, model: "nn.Module") -> "list[Optimizer]":
        """SGD with momentum over all parameters."""
        import torch

        return [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)]

    def metrics(self, dataset: "Dataset[Any]") -> "list[Metric]":
        """Share of pictures that are put into the right class."""
        from charact.metrics import Accuracy

        return [Accuracy()]


def all_workloads() -> dict[str, Workload]:
    """Every workload by name: those in `workloads/`, then those of installed entry points, which must not repeat one.

    Raises:
        UserError: an entry point does not hold a list `WORKLOADS`, or repeats a name.
    """
    modules = [(f"workloads/{module.__name__.rpartition('.')[2]}.py", module)
               for module in modules_in("charact.workloads")]
    modules += [(f"entry point {point.value}", point.load()) for point in entry_points(group="charact.workloads")]
    found: dict[str, Workload] = {}
    for origin, module in modules:
        workloads: Sequence[Workload] | None = getattr(module, "WORKLOADS", None)
        if workloads is None:
            raise UserError(f"{origin} holds no list named WORKLOADS: add one, or remove the file")
        for workload in workloads:
            if workload.name in found:
                raise UserError(f"{origin} repeats the workload {workload.name}: rename it")
            found[workload.name] = workload
    return found


def find_workload(name: str) -> Workload:
    """Workload of a name or alias.

    Raises:
        UserError: there is none; the nearest names are suggested.
    """
    workloads = all_workloads()
    by_name = workloads | {alias: workload for workload in workloads.values() for alias in workload.aliases}
    if name in by_name:
        return by_name[name]
    near = difflib.get_close_matches(name, by_name, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else "`charact list` shows them all"
    raise UserError(f"unknown workload '{name}': {hint}")
