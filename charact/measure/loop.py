"""The iteration, written once: every pass runs this loop and differs only in the marks that it puts around phases."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader

from charact.measure.case import PRECISIONS, Case

Mark = Callable[[str], AbstractContextManager[Any]]
"""Gives, for a phase's name, the context that is entered around it."""


class Loop:
    """A case brought to life: its model on the device, its optimizer, and one iteration after another.

    Args:
        case: what to run.
        batches: batches on the device, without end; by default the case's data through a `DataLoader`.
    """

    def __init__(self, case: Case, batches: Iterator[Any] | None = None) -> None:
        torch.manual_seed(case.data.seed)
        self.case = case
        self.workload = case.workload.prepare(case.workload.variant)
        self.dataset = case.dataset()
        self.model = self.workload.model(self.dataset)
        if case.device.type != "cpu":  # fake tensors cannot be moved, not even to where they are
            self.model = self.model.to(case.device)
        if case.channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.model.train(case.training)
        self.optimizers = self.workload.optimizers(self.model) if case.training else []
        # From PyTorch's own initial scale the first steps overflow and are skipped, which would make updates too short.
        self.scaler = torch.amp.GradScaler(case.device.type, init_scale=2.0**10,
                                           enabled=case.training and case.precision == "fp16")
        self.batch: Any = None
        """Batch of the iteration that is going on, on the device; None between iterations."""
        self._batches = batches or self._endless_batches()

    def iteration(self, mark: Mark) -> None:
        """Run one iteration, each phase inside `mark(phase)`."""
        if self.case.training:
            self._train(mark)
        else:
            self._infer(mark)
        self.batch = None

    def next_batch(self) -> Any:
        """Fetch the next batch and move it to the device; epochs follow one another without end."""
        return next(self._batches)

    def close(self) -> None:
        """Let go of the loader, which stops its workers."""
        self._batches = iter(())

    def autocast(self) -> AbstractContextManager[Any]:
        """Autocast of the case's precision; nothing for fp32."""
        dtype = PRECISIONS[self.case.precision]
        return contextlib.nullcontext() if dtype is None else torch.autocast(self.case.device.type, dtype=dtype)

    def _train(self, mark: Mark) -> None:
        with mark("data"):
            self.batch = self.next_batch()
        with mark("forward"), self.autocast():
            outputs = self.workload.forward(self.model, self.batch)
        with mark("loss"), self.autocast():
            loss = self.workload.loss(outputs, self.batch)
        with mark("backward"):
            self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        with mark("update"):
            for optimizer in self.optimizers:
                self.scaler.unscale_(optimizer)
            self.workload.clip_gradients(self.model)
            for optimizer in self.optimizers:
                self.scaler.step(optimizer)
            self.scaler.update()
            for optimizer in self.optimizers:
                optimizer.zero_grad()

    def _infer(self, mark: Mark) -> None:
        with mark("data"):
            self.batch = self.next_batch()
        with mark("forward"), torch.inference_mode(), self.autocast():
            self.workload.forward(self.model, self.batch)

    def _endless_batches(self) -> Iterator[Any]:
        case = self.case
        on_cuda = case.device.type == "cuda"
        shuffle = case.training and getattr(self.dataset, "shuffled", True)
        loader = DataLoader(
            self.dataset, batch_size=case.batch_size, shuffle=shuffle, drop_last=True,
            num_workers=case.num_workers, persistent_workers=case.num_workers > 0, pin_memory=on_cuda,
            generator=torch.Generator().manual_seed(case.data.seed),
            collate_fn=getattr(self.dataset, "collate", None),
        )
        while True:
            self.workload.start_epoch()
            # `map` lets go of what it was given: a loop's variable would hold the batch a second time.
            yield from map(self._move, loader) if on_cuda or case.channels_last else loader

    def _move(self, batch: Any) -> Any:
        return tree_map_only(torch.Tensor, self._to_device, batch)

    def _to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        layout = torch.channels_last if self.case.channels_last and tensor.dim() == 4 else torch.preserve_format
        return tensor.to(self.case.device, non_blocking=True, memory_format=layout)
