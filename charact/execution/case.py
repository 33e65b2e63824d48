"""A case: one point of a sweep, with checks before a run is written."""

import contextlib
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch.utils.data import Dataset

from charact.core.errors import UserError
from charact.datasets._common.request import DataRequest
from charact.execution.lora import adapt
from charact.execution.precision import PRECISIONS, unsupported_reason
from charact.record.schema import GENERATING_MODES
from charact.workload.base import Workload

DEFAULT_OUTPUT_SIZE = 32


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
    """Whether the model is compiled with torch.compile."""
    accumulate: int = 1
    """Batches whose gradients are summed before an update; together they are one iteration."""
    parallel: str | None = None
    """How ranks train together, one of `schema.PARALLEL`; None for a single process."""
    num_ranks: int = 1
    """Number of ranks, each with a batch of `batch_size`."""
    output_size: int = 0
    """Words that each request gets, if the case generates; 0 otherwise."""
    cache: str = "static"
    """How a generation keeps keys and values, one of `schema.CACHES`."""
    attention: str | None = None
    """Backend of attention, one of `schema.ATTENTION`; None for PyTorch's choice."""
    lora_rank: int = 0
    """Rank of the adapters that are trained instead of the model's weights; 0 without adapters."""

    @property
    def id(self) -> str:
        """Readable and stable identifier, e.g. `resnet50-224-b8-train-fp32-cpu`."""
        device = str(self.device).replace(":", "")
        size = f"{self.input_size}+{self.output_size}" if self.mode in GENERATING_MODES else str(self.input_size)
        mode = self.mode if self.cache == "static" else f"{self.mode}.{self.cache}"
        mode += f".lora{self.lora_rank}" if self.lora_rank else ""
        batch = f"b{self.batch_size}" + (f"x{self.accumulate}" if self.accumulate > 1 else "")
        attention = f"-{self.attention}" if self.attention else ""
        ranks = f"-{self.parallel}x{self.num_ranks}" if self.parallel else ""
        return f"{self._full_name}-{size}-{batch}-{mode}-{self.precision}{attention}-{device}{ranks}"

    @property
    def _full_name(self) -> str:
        workload = self.workload
        return workload.name if workload.variant == workload.variants[0] else f"{workload.name}.{workload.variant}"

    @property
    def training(self) -> bool:
        """Whether the case trains; otherwise it infers."""
        return self.mode == "train"

    @property
    def dtype(self) -> torch.dtype:
        """Type to which weights and images are converted."""
        return PRECISIONS[self.precision].weights

    def dataset(self) -> Dataset[Any]:
        """Return the samples of the case's data at its input size."""
        return self.workload.dataset(self.input_size, replace(self.data, batch_size=self.batch_size))

    def model(self, workload: Workload, dataset: Dataset[Any]) -> torch.nn.Module:
        """Return the model of a copy of the workload, with adapters if the case trains these.

        Raises:
            UserError: the model cannot have them.
        """
        model = workload.model(dataset)
        if self.lora_rank:
            adapt(model, self.lora_rank, self._full_name)
        return model

    def check(self, *, here: bool = True) -> None:
        """Check that the case can run, before anything is written; not what a device can do that is not `here`."""
        self.check_size()
        self.check_trainable()
        if (here or self.device.type == "cpu") and (reason := unsupported_reason(self.precision, self.device)):
            raise UserError(reason)
        if self.channels_last and self.workload.input_kind != "image":
            raise UserError(f"--channels-last orders the axes of images, but {self.workload.name} reads none: "
                            "leave it out")
        dataset = self.dataset()
        if self.lora_rank:
            with contextlib.suppress(RuntimeError, NotImplementedError), torch.device("meta"):
                self.model(self.workload.prepare(self.workload.variant), dataset)
        named = os.environ.get("CXX")
        compilers = [named] if named else ["g++", "clang++"]
        if self.compiled and self.device.type == "cpu" and not any(map(shutil.which, compilers)):
            raise UserError(f"--compile on a CPU needs a C++ compiler, but there is no {' or '.join(compilers)}: "
                            "install one")
        num_samples = len(dataset)  # type: ignore[arg-type]
        if num_samples < self.batch_size:
            raise UserError(f"batch size {self.batch_size} is larger than the {num_samples} samples of "
                            f"{self.data.name}: choose a smaller --batch-sizes")

    def check_trainable(self) -> None:
        """Check that the weights of a training have gradients in its precision."""
        if self.training and PRECISIONS[self.precision].quantized:
            raise UserError(f"{self.precision} is for inference, since integers have no gradients: leave train out of "
                            "--mode, or use another --precision")

    def check_size(self) -> None:
        """Check that the network's layers allow the input size; the remedy is part of the error."""
        smallest = self.workload.smallest_input_size
        if self.input_size < smallest:
            raise UserError(f"input size {self.input_size} is too small for {self._full_name} "
                            f"(needs at least {smallest})")
        step = self.workload.input_size_step
        if below := self.input_size % step:
            lower = self.input_size - below
            raise UserError(f"input size {self.input_size} does not suit {self._full_name} (needs a multiple of "
                            f"{step}): choose {lower} or {lower + step}")
        longest = self.workload.longest_input_size
        if longest is not None and self.input_size + self.output_size > longest:
            outputs = f" with output size {self.output_size}" if self.output_size else ""
            raise UserError(f"input size {self.input_size}{outputs} is too large for {self._full_name} "
                            f"(takes at most {longest})")


def cases_of(workload: Workload, input_sizes: Sequence[int] | None, batch_sizes: Sequence[int] | None,
             modes: Sequence[str], precisions: Sequence[str], output_sizes: Sequence[int] = (),
             caches: Sequence[str] = (), attentions: Sequence[str | None] = (None,), lora_ranks: Sequence[int] = (0,),
             **options: Any) -> list[Case]:
    """Return a case for each combination, not checked; the workload's defaults stand for what is not given.

    Output sizes and kinds of caches only distinguish the modes that generate, and ranks of adapters the mode train.

    Raises:
        UserError: the workload does not generate, or not with such a cache, but a mode does.
    """
    cases = []
    sizes, batches = input_sizes or [workload.default_input_size], batch_sizes or [workload.default_batch_size]
    for size, batch, mode, precision, attention in product(sizes, batches, modes, precisions, attentions):
        if mode not in GENERATING_MODES:
            cases += [Case(workload, size, batch, mode, precision, attention=attention, lora_rank=rank, **options)
                      for rank in (lora_ranks if mode == "train" else (0,))]
            continue
        if not workload.generates:
            raise UserError(f"{workload.name} does not generate: leave --mode generate out")
        for cache in caches:
            if cache not in workload.caches:
                raise UserError(f"{workload.name} does not generate with --cache {cache}: choose from "
                                f"{', '.join(workload.caches)}")
        cases += [Case(workload, size, batch, mode, precision, output_size=outputs, cache=cache, attention=attention,
                       **options)
                  for outputs, cache in product(output_sizes or [DEFAULT_OUTPUT_SIZE], caches or workload.caches[:1])
                  if mode == "prefill" or outputs > 1]  # the first word is that of the prefill
    return cases


def checked(cases: Iterable[Case], *, here: bool = True) -> list[Case]:
    """Return the distinct cases, each checked before anything is written; see `Case.check`."""
    distinct = {case.id: case for case in cases}
    for case in distinct.values():
        case.check(here=here)
    return list(distinct.values())
