"""Checkpoints of a training: all that its next epoch depends on. Random numbers are drawn anew in each epoch."""

import pickle
from pathlib import Path
from typing import Any, NamedTuple

import torch

from charact.errors import UserError
from charact.files import reading, whole
from charact.measure.loop import Loop
from charact.store import Rows


class Progress(NamedTuple):
    """How far a training has come."""

    epoch: int
    """Number of whole epochs."""
    stages: Rows
    metrics: Rows
    best: dict[str, Any] | None
    """Name, value and epoch of the best value so far of the metric that chooses the weights."""


_DAMAGED = (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError, EOFError, OSError,
            pickle.UnpicklingError)


def write_tensors(content: Any, path: Path) -> None:
    """Write what `torch.load(weights_only=True)` reads, whole or not at all.

    Raises:
        UserError: the disk is full, or the place is not writable.
    """
    with whole(path) as temporary, temporary.open("wb") as file:
        try:
            torch.save(content, file)
        except RuntimeError as error:
            # What the file system said, or that a signal came: torch does not repeat it.
            if isinstance(error.__context__, (OSError, KeyboardInterrupt)):
                raise error.__context__ from error
            raise


def write_checkpoint(path: Path, loop: Loop, schedulers: list[Any], progress: Progress) -> None:
    """Write a training's state.

    Raises:
        UserError: as `write_tensors`.
    """
    write_tensors({
        "model": loop.model.state_dict(), "optimizers": [optimizer.state_dict() for optimizer in loop.optimizers],
        "schedulers": [scheduler.state_dict() for scheduler in schedulers], "scaler": loop.scaler.state_dict(),
        "progress": progress._asdict(),
    }, path)


def read_checkpoint(path: Path, loop: Loop, schedulers: list[Any]) -> Progress:
    """Bring a training to the state that it was written in.

    Raises:
        UserError: the file is damaged, or of another training.
    """
    with reading(path), path.open("rb"):  # what torch's reader says of a file that it may not open is no help
        pass
    try:
        state = torch.load(path, map_location=loop.case.device, weights_only=True)
        loop.model.load_state_dict(state["model"])
        for part, saved in zip([*loop.optimizers, *schedulers, loop.scaler],
                               [*state["optimizers"], *state["schedulers"], state["scaler"]], strict=True):
            part.load_state_dict(saved)
        return Progress(**state["progress"])
    except _DAMAGED as error:
        raise UserError(f"{path} is damaged ({type(error).__name__}): remove it, and its case begins anew") from error
