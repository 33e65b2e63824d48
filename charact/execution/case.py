"""A case: one point of a sweep, and what is checked of it before anything is written."""

import os
import shutil
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import Dataset

from charact.core.errors import UserError
from charact.datasets._common.request import DataRequest
from charact.execution.precision import PRECISIONS, refusal
from charact.workload.base import Workload


@dataclass(frozen=True)
class Case:
    """One point of a sweep: workload × input size × batch size × mode × precision × device."""

    workload: Workload
    input_size: int
    batch_size: int
    mode: str
    precision: str
    device: torch.device
    data: DataRequest
    num_workers: int = 0
    channels_last: bool = False
    compiled: bool = False
    """Whether the model goes through torch.compile."""
    accumulate: int = 1
    """Batches whose gradients are summed before an update; together they are one iteration."""

    @property
    def id(self) -> str:
        """Readable and stable identifier, e.g. `resnet50-224-b8-train-fp32-cpu`."""
        device = str(self.device).replace(":", "")
        batch = f"b{self.batch_size}" + (f"x{self.accumulate}" if self.accumulate > 1 else "")
        return f"{self._full_name}-{self.input_size}-{batch}-{self.mode}-{self.precision}-{device}"

    @property
    def _full_name(self) -> str:
        workload = self.workload
        return workload.name if workload.variant == workload.variants[0] else f"{workload.name}.{workload.variant}"

    @property
    def training(self) -> bool:
        """Whether the case trains; else it infers."""
        return self.mode == "train"

    @property
    def dtype(self) -> torch.dtype | None:
        """Type that weights and pictures are brought to; None where the workload's keep those that they have."""
        return None if self.workload.keeps_types else PRECISIONS[self.precision].weights

    def dataset(self) -> Dataset[Any]:
        """Samples of the case's data at its input size."""
        return self.workload.dataset(self.input_size, replace(self.data, batch_size=self.batch_size))

    def check(self, *, here: bool = True) -> None:
        """Refuse what cannot run, before anything is written.

        Args:
            here: whether the device is here; one that is not cannot be asked what it is capable of.

        Raises:
            UserError: the input is too small for the network, or the precision or data do not fit.
        """
        self.check_size()
        asked = here or self.device.type == "cpu"
        if reason := (refusal(self.precision, self.device) if asked else None) or self._option_refusal():
            raise UserError(reason)
        num_samples = len(self.dataset())  # type: ignore[arg-type]
        if num_samples < self.batch_size:
            raise UserError(f"batch size {self.batch_size} is larger than the {num_samples} samples of "
                            f"{self.data.name}: choose a smaller --batch-sizes")

    def check_size(self) -> None:
        """Refuse an input that the network's layers do not allow.

        Raises:
            UserError: it is too small.
        """
        smallest = self.workload.smallest_input_size
        if self.input_size < smallest:
            raise UserError(f"input size {self.input_size} is too small for {self._full_name} "
                            f"(needs at least {smallest})")

    def _option_refusal(self) -> str | None:
        """Why an option does not fit the case; None where all do."""
        if self.channels_last and self.workload.input_kind != "image":
            return f"--channels-last orders the axes of pictures, {self.workload.name} reads text: leave it out"
        if self.compiled and self.device.type == "cpu" and not any(map(shutil.which, _compilers())):
            return f"--compile on a CPU needs a C++ compiler, there is no {' or '.join(_compilers())}: install one"
        return None


def _compilers() -> list[str]:
    """Names of the compilers that PyTorch would call."""
    named = os.environ.get("CXX")
    return [named] if named else ["g++", "clang++"]
