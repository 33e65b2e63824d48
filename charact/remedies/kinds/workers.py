"""Load batches in worker processes, or without them."""

from collections.abc import Mapping
from typing import Any

from charact.record.manifest_program import LoaderSettings
from charact.remedies.patching import change_arguments, unavailable
from charact.remedies.program import Program, place_of
from charact.remedies.remedy import Remedy, Setting

_EPOCHS = 4
"""Number of epochs of a trial in which workers are started once instead of in each epoch."""
_MOST_WAITING = 8
"""Largest number of processes for loading that only waits, such as for a network."""
_PREFETCH_FACTOR = 2
"""PyTorch's default with workers, which a record has, too, where the program sets none."""


def _settings(program: Program) -> list[Setting] | str:
    loader = max(program.settings.loaders, key=lambda each: each.wait_s or 0.0, default=None)
    if loader is None:
        return "no DataLoader was used" if program.is_watched else "charact profile has --workers"
    expected = program.expected_frac("data_loading", "loader_workers")
    now, cores = loader.num_workers or 0, program.num_cores
    numbers = {cores, max(cores // 2, 1)} if not now else {0, cores, 2 * now}
    finding = program.finding("data_loading")
    if finding is not None and "waits" in finding.cause:
        numbers.add(_MOST_WAITING)
    settings = [_setting(loader, number, expected) for number in sorted(numbers - {now})]
    if now and not loader.persistent_workers:
        settings.append(_persistent(loader, program.expected_frac("epoch_start")))
    return settings


def _persistent(loader: LoaderSettings, expected_frac: float) -> Setting:
    """Return the setting that starts the same workers only once, in a trial of several epochs."""
    per_epoch = (loader.num_batches or 0) // max(loader.num_iterators or 1, 1)
    added = "persistent_workers=True"
    values = {"num_workers": loader.num_workers, "file": loader.file, "line": loader.line}
    return Setting("workers", values, added, f"DataLoader(…, {added})", place_of(loader), added, expected_frac,
                   _EPOCHS * per_epoch)


def _setting(loader: LoaderSettings, number: int, expected_frac: float) -> Setting:
    added = f"num_workers={number}"
    if number or loader.persistent_workers:  # which a loader without workers refuses
        added += f", persistent_workers={number > 0}"
    if not number and loader.prefetch_factor not in (None, _PREFETCH_FACTOR):
        added += ", prefetch_factor=None"
    values: dict[str, Any] = {"num_workers": number, "file": loader.file, "line": loader.line}
    return Setting("workers", values, added, f"DataLoader(…, {added})", place_of(loader), added, expected_frac)


def _apply(num_workers: int, file: str | None, line: int | None) -> None:
    from torch.utils.data import DataLoader, IterableDataset

    def check(arguments: Mapping[str, Any]) -> None:
        if num_workers and isinstance(arguments["dataset"], IterableDataset):
            unavailable("each worker would read the whole IterableDataset again")

    values: dict[str, Any] = {"num_workers": num_workers, "persistent_workers": num_workers > 0}
    if not num_workers:
        values |= {"prefetch_factor": None, "multiprocessing_context": None, "timeout": 0}
    change_arguments(DataLoader, values, file, line, check)


REMEDY = Remedy("workers", _settings, _apply, findings=("data_loading", "loader_workers", "epoch_start"))
