"""Training checkpoints: all state that the next epoch depends on, except random number generators, seeded per epoch."""

from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import torch

from charact.core.errors import UserError
from charact.core.files import reading
from charact.execution.loop import Loop
from charact.execution.tensor_files import DamagedFileError, outline, read, write_tensors
from charact.measure.training.weight_files import limit_for
from charact.record.schema import ADDED_COLUMNS, TABLES, Rows
from charact.record.tables import arrow_schema

_DAMAGED = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, OverflowError, pa.ArrowException)
_NUMBERS = (bool, int, float, torch.Tensor, type(None))
_COLUMN_TYPES = {"string": (str, type(None)), "int64": (int, type(None)), "float64": (float, int, type(None))}


class Progress(NamedTuple):
    """Progress of a training."""

    epoch: int
    """Number of finished epochs."""
    stages: Rows
    metrics: Rows
    best: dict[str, Any] | None
    """Name, value and epoch of the best value so far of the metric that selects the weights."""
    others: list[dict[str, Rows]] = []  # noqa: RUF012  (never changed)
    """Rows of the tables `stages` and `metrics` of ranks 1 and above; `stages` and `metrics` are those of rank 0."""


def write_checkpoint(path: Path, loop: Loop, schedulers: list[Any], progress: Progress) -> None:
    """Write a training's state."""
    write_tensors({
        "model": loop.model.state_dict(), "optimizers": [optimizer.state_dict() for optimizer in loop.optimizers],
        "schedulers": [scheduler.state_dict() for scheduler in schedulers], "scaler": loop.scaler.state_dict(),
        "progress": progress._asdict(),
    }, path)


def read_checkpoint(path: Path, loop: Loop, schedulers: list[Any]) -> Progress:
    """Restore a training's state; raise a `UserError` if the file is damaged or of another model."""
    remedy = "remove it to restart the training of its case"
    with reading(path), path.open("rb"):  # torch's error for a file without read permission is misleading
        pass
    try:
        state = outline(path, limit_for(loop.model))
        if {name: tensor.shape for name, tensor in state["model"].items()} != {
                name: tensor.shape for name, tensor in loop.model.state_dict().items()}:
            raise UserError(f"{path} is of another model: {remedy}")
        state = read(path, loop.case.device)
        progress = _progress(state["progress"])
        loop.model.load_state_dict(state["model"])
        for optimizer, saved in zip(loop.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(_optimizer_state(optimizer, saved))
        for scheduler, saved in zip(schedulers, state["schedulers"], strict=True):
            _check_known(saved, scheduler.state_dict())
            scheduler.load_state_dict(saved)
        loop.scaler.load_state_dict(state["scaler"])
        return progress
    except (*_DAMAGED, DamagedFileError) as error:
        raise UserError(f"{path} is damaged ({type(error).__name__}): {remedy}") from error


def _optimizer_state(optimizer: torch.optim.Optimizer, saved: Any) -> dict[str, Any]:
    """Return an optimizer's saved state after a check of its settings' names and types.

    Raises:
        ValueError, TypeError, KeyError: it belongs to another optimizer.
    """
    for own, group in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        _check_known(group, own)
        for name, value in group.items():
            # A number may have become another kind of number.
            kinds = next((kinds for kinds in (_NUMBERS, (list, tuple)) if isinstance(own[name], kinds)),
                         (type(own[name]),))
            if name != "params" and not isinstance(value, kinds):
                raise TypeError(f"{name} is {type(value).__name__}")
    return dict(saved)


def _check_known(saved: dict[str, Any], own: dict[str, Any]) -> None:
    """Check that a saved state has no unknown settings; a scheduler would accept any attribute.

    Raises:
        KeyError: there is an unknown setting.
    """
    if not saved.keys() <= own.keys():
        raise KeyError("a setting is unknown")


def _progress(saved: Any) -> Progress:
    """Return the saved progress after a check of its rows against the record's tables.

    Raises:
        ValueError, TypeError: it does not match.
    """
    progress = Progress(**saved)
    if type(progress.epoch) is not int or not 0 <= progress.epoch < 2**31:
        raise ValueError("invalid epoch")
    if not isinstance(progress.others, list):
        raise TypeError("invalid rows of other ranks")
    for table, rows in [("stages", progress.stages), ("metrics", progress.metrics),
                        *((table, other[table]) for other in progress.others for table in ("stages", "metrics"))]:
        kinds = {column.name: _COLUMN_TYPES[column.type] for column in TABLES[table]}
        required = kinds.keys() - {"case"} - ADDED_COLUMNS.get(table, frozenset())
        if not isinstance(rows, list) or not all(
                isinstance(row, dict) and required <= row.keys() <= kinds.keys() - {"case"}
                and all(isinstance(value, kinds[name]) for name, value in row.items()) for row in rows):
            raise ValueError(f"invalid row of {table}")
        arrow = pa.Table.from_pylist([{"case": "", **row} for row in rows], schema=arrow_schema(table))
        arrow.validate(full=True)
    best = progress.best
    if best is not None and (best.keys() != {"metric", "value", "epoch"} or not isinstance(best["metric"], str)
                             or not isinstance(best["value"], float) or not isinstance(best["epoch"], int)):
        raise ValueError("invalid best value")
    return progress
