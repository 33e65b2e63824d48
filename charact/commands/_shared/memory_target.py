"""The device of a memory estimate: one of this machine, one of the table, or one known by its memory only."""

import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

import torch

from charact.core.errors import UserError
from charact.core.units import quantity
from charact.machine.facts import gpu_facts, resolve_device
from charact.measure.memory_estimate.target_devices import (
    target_like,
    target_names,
    target_of_memory,
    this_device,
)

if TYPE_CHECKING:
    from charact.measure.memory_estimate.target_devices import Target

AMOUNT = re.compile(r"[\d.]+\s*[kmgt]i?b?", re.IGNORECASE)
"""An amount of memory with a unit, complete or not."""
_SAME_MEMORY_FRAC = 0.05
"""Largest relative difference in memory of two devices of one name: it varies with the driver."""


@dataclass(frozen=True)
class Chosen:
    """The device of estimates and measurements."""

    target: "Target"
    device: torch.device
    here: bool
    """Whether cases can run on it."""


def chosen_device(device: str, like: str | None, limit_bytes: int | None, *, runs: bool = False) -> Chosen:
    """Return the device for `--device`, `--device-like` and `--device-memory`.

    Args:
        device: a device of this machine, or auto.
        like: name of a GPU of the table.
        limit_bytes: memory limit.
        runs: whether cases may run on the device, which then has at least the memory of the limit.
    """
    if like is not None:
        if device == "cpu":
            raise UserError("--device-like names a GPU: leave --device cpu out")
        if AMOUNT.fullmatch(like.strip()):
            raise UserError(f"--device-like names a GPU, such as t4 (charact list devices): for any with {like}, write "
                            f"--device cuda --device-memory {like}")
        target = target_like(like)
        _check_limit(target, limit_bytes, "choose a larger GPU, or leave --device-memory out")
        found = _like_it(target, device)
        return Chosen(_limited(target, limit_bytes), found or torch.device("cuda"), found is not None)
    if re.fullmatch(r"cuda(:.*)?", device) and not gpu_facts()[0]:
        if limit_bytes is None or device != "cuda":
            raise UserError(f"no device {device} here ({gpu_facts()[1]}): estimate for a GPU with --device-like t4 "
                            "(charact list devices), or with --device cuda --device-memory 16GiB")
        return Chosen(target_of_memory(limit_bytes, "cuda"), torch.device("cuda"), here=False)
    if (near := get_close_matches(device.lower().replace(" ", "-"), target_names(), cutoff=0.5)) and not re.fullmatch(
            r"auto|cpu|cuda(:.*)?", device):
        raise UserError(f"--device {device}: a device of this machine is auto, cpu or cuda:N; --device-like {near[0]} "
                        "estimates for another GPU (charact list devices)")
    resolved = resolve_device(device)
    target = this_device(resolved)
    if runs:
        _check_limit(target, limit_bytes, "add --predict to only estimate")
    return Chosen(_limited(target, limit_bytes), resolved, here=True)


def _check_limit(target: "Target", limit_bytes: int | None, remedy: str) -> None:
    """Raise a `UserError` if a limit is more than the memory of the device."""
    if limit_bytes is not None and target.memory_bytes is not None and limit_bytes > target.memory_bytes:
        raise UserError(f"the limit of {quantity(limit_bytes, 'B')} is more than the "
                        f"{quantity(target.memory_bytes, 'B')} of {target.name}: {remedy}")


def _like_it(target: "Target", device: str) -> torch.device | None:
    """Return the GPU of this machine with a name of the table; None if there is none."""
    gpus, _ = gpu_facts()
    for found in [resolve_device(device)] if gpus else []:
        own = this_device(found)
        squashed = re.sub(r"[^a-z0-9]", "", own.name.lower())
        assert own.memory_bytes is not None
        assert target.memory_bytes is not None
        if (all(part in squashed for part in target.name.split("-"))
                and abs(own.memory_bytes / target.memory_bytes - 1) <= _SAME_MEMORY_FRAC):
            return found
    return None


def _limited(target: "Target", limit_bytes: int | None) -> "Target":
    if limit_bytes is None:
        return target
    return replace(target, name=f"{target.name}, limited by --device-memory", memory_bytes=limit_bytes, source="given")
