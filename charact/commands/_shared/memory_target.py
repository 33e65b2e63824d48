"""Which device memory is looked at for: one that is here, one of the table, or one known by its memory alone."""

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from charact.core.errors import UserError
from charact.machine.facts import gpu_facts, resolve_device
from charact.measure.memory_estimate.target_devices import target_like, target_of_memory, this_device

if TYPE_CHECKING:
    from charact.measure.memory_estimate.target_devices import Target

_SAME_MEMORY_FRAC = 0.05
"""By how much the memory of two devices of one name may differ: it varies with the driver."""


@dataclass(frozen=True)
class Chosen:
    """A device to look at."""

    target: "Target"
    device: torch.device
    here: bool
    """Whether cases can be run on it."""


def chosen_device(device: str, like: str | None, limit_bytes: int | None) -> Chosen:
    """The device that `--device`, `--device-like` and `--device-memory` name together.

    Raises:
        UserError: there is none of such a name, or two of them do not go together.
    """
    if like is not None:
        if device == "cpu":
            raise UserError("--device-like names a GPU: leave --device cpu out")
        target = target_like(like)
        found = _like_it(target, device)
        return Chosen(_limited(target, limit_bytes), found or torch.device("cuda"), found is not None)
    if limit_bytes is not None and device == "cuda" and not gpu_facts()[0]:
        return Chosen(target_of_memory(limit_bytes, "cuda"), torch.device("cuda"), here=False)
    resolved = resolve_device(device)
    return Chosen(_limited(this_device(resolved), limit_bytes), resolved, here=True)


def _like_it(target: "Target", device: str) -> torch.device | None:
    """The GPU of this machine that is meant by a name of the table, if there is one."""
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
    return replace(target, name=f"{target.name} (limited)", memory_bytes=limit_bytes, source="given")
