"""Batches of a case's data, moved to its device."""

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from charact.execution.case import Case


class Batches:
    """Batches of a data set on the case's device, one epoch at a time.

    Args:
        case: sets the batch size, the device and the loading of data.
        dataset: the samples.
        shuffle: whether to shuffle in each epoch, unless the order of samples is part of the data.
        whole: drop a smaller last batch, so that all iterations have the same size.
        persistent: keep the workers between epochs, which saves their start; their random numbers then depend on all
            previous epochs.
        max_batches: largest number of batches in an epoch; None for all.
        share: rank and number of ranks; each rank gets an equal number of samples of the common order. None for all
            samples.
    """

    def __init__(self, case: Case, dataset: Dataset[Any], *, shuffle: bool, whole: bool,
                 persistent: bool = True, max_batches: int | None = None, share: tuple[int, int] | None = None) -> None:
        on_cuda = case.device.type == "cuda"
        self._case = case
        self._dtype = case.dtype
        self._in_place = not on_cuda and not case.channels_last and self._dtype == torch.float32
        self._generator = torch.Generator()
        shuffle = shuffle and getattr(dataset, "shuffled", True)
        self._sampler: DistributedSampler[Any] | None = None if share is None else DistributedSampler(
            dataset, num_replicas=share[1], rank=share[0], shuffle=shuffle, drop_last=True)
        self._num_samples = len(self._sampler or dataset)  # type: ignore[arg-type]
        self._max_batches = max_batches
        self._loader: DataLoader[Any] = DataLoader(
            dataset, batch_size=case.batch_size, shuffle=shuffle and share is None, sampler=self._sampler,
            drop_last=whole, num_workers=case.num_workers,
            persistent_workers=persistent and case.num_workers > 0,
            pin_memory=on_cuda, generator=self._generator, collate_fn=getattr(dataset, "collate", None),
        )

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return min(len(self._loader), self._max_batches or len(self._loader))

    def size(self, number: int) -> int:
        """Return the number of samples in a batch, by index from 0."""
        return min(self._case.batch_size, self._num_samples - number * self._case.batch_size)

    def epoch(self, seed: int | None = None) -> Iterator[Any]:
        """Return one epoch's batches; a seed determines their order and the random numbers of new workers."""
        if seed is not None:
            self._generator.manual_seed(seed)
            if self._sampler is not None:
                self._sampler.seed = seed
        # `map` releases its argument: a loop's variable would hold the batch a second time.
        return iter(self._loader) if self._in_place else map(self._move, self._loader)

    def first(self, seed: int) -> Iterator[Any]:
        """Yield the first batch of the epoch with a seed, again and again, fetched each time."""
        self._generator.manual_seed(seed)
        indices = iter(self._loader)._next_index()  # type: ignore[no-untyped-call]
        again = DataLoader(self._loader.dataset, batch_sampler=itertools.repeat(indices),
                           pin_memory=self._loader.pin_memory, collate_fn=self._loader.collate_fn)
        return iter(again) if self._in_place else map(self._move, again)

    def _move(self, batch: Any) -> Any:
        def moved(tensor: torch.Tensor) -> torch.Tensor:
            layout = torch.channels_last if self._case.channels_last and tensor.dim() == 4 else torch.preserve_format
            dtype = self._dtype if tensor.is_floating_point() else tensor.dtype
            return tensor.to(self._case.device, dtype, non_blocking=True, memory_format=layout)

        return tree_map_only(torch.Tensor, moved, batch)
