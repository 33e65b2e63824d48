"""The device of a memory estimate: one of this machine, one of the table, or one known by its memory only."""

import re
from dataclasses import dataclass, replace
from difflib import get_close_matches

import torch

from charact.core.errors import UserError
from charact.core.units import quantity
from charact.machine.facts import gpu_facts, resolve_device
from charact.measure.memory_estimate.target_devices import (
    Target,
    target_like,
    target_names,
    target_of_memory,
    this_device,
)

AMOUNT = re.compile(r"[\d.]+\s*[kmgt]i?b?", re.IGNORECASE)
"""An amount of memory with a unit, complete or not."""
_SAME_MEMORY_FRAC = 0.05
"""Largest relative difference in memory of two devices of one name: it varies with the driver."""


@dataclass(frozen=True)
class Chosen:
    """The device of estimates and measurements."""

    target: Target
    device: torch.device
    here: bool
    """Whether cases can run on it."""


def chosen_device(device: str, like: str | None, limit_bytes: int | None, *, runs: bool = False,
                  limit_option: str = "--device-memory") -> Chosen:
    """Return the device for `--device`, `--device-like` and a memory limit.

    With `runs`, cases may run on the device, which then has at least the memory of the limit. `limit_option` names
    what gave the limit, for messages.
    """
    if like is not None:
        if device == "cpu":
            raise UserError("--device-like names a GPU: leave --device cpu out")
        if AMOUNT.fullmatch(like.strip()):
            raise UserError(f"--device-like names a GPU, such as t4 (charact list devices): for any with {like}, write "
                            f"--device cuda --device-memory {like}")
        target = target_like(like)
        present = _present(target, device)
        target = _limited(target, limit_bytes, f"choose a larger GPU, or leave {limit_option} out")
        return Chosen(target, present or torch.device("cuda"), present is not None)
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
    target = _limited(this_device(resolved), limit_bytes, "add --predict to only estimate" if runs else None)
    return Chosen(target, resolved, here=True)


def _limited(target: Target, limit_bytes: int | None, remedy: str | None) -> Target:
    if limit_bytes is None:
        return target
    if remedy is not None and target.memory_bytes is not None and limit_bytes > target.memory_bytes:
        raise UserError(f"the limit of {quantity(limit_bytes, 'B')} is more than the "
                        f"{quantity(target.memory_bytes, 'B')} of {target.name}: {remedy}")
    return replace(target, name=f"the limit given for {target.name}", memory_bytes=limit_bytes, source="given")


def _present(target: Target, device: str) -> torch.device | None:
    """Return this machine's GPU with a name of the table; None if it has another, or none."""
    if not gpu_facts()[0]:
        return None
    resolved = resolve_device(device)
    own = this_device(resolved)
    name = re.sub(r"[^a-z0-9]", "", own.name.lower())
    assert own.memory_bytes is not None
    assert target.memory_bytes is not None
    is_same = (all(part in name for part in target.name.split("-"))
               and abs(own.memory_bytes / target.memory_bytes - 1) <= _SAME_MEMORY_FRAC)
    return resolved if is_same else None


