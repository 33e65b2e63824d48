"""A model's peak of memory, constructed from what its bricks hold."""

from typing import Any

import pandas as pd

from charact.analysis.bricks.times import BrickTimes
from charact.bricks.composition import Composition
from charact.store import Rows

_NEEDED = ("weights_bytes", "outputs_bytes", "peak_bytes")


def constructed_memory(composition: Composition, times: BrickTimes) -> tuple[Rows, str | None]:
    """Rows of the table `memory` (bytes at the peak by category), or none with the reason.

    Weights and buffers; what pieces gave and others have yet to read; what the piece itself holds for a moment. In
    training what pieces gave and saved stays until their backward pass, the gradients of weights grow towards the
    iteration's beginning, and the optimizer's state is always there. Its step holds what the largest of its bricks
    does.

    *Error*: modelled. The model's own input is left out. In training all that pieces give is taken to be saved, which
    is too much where what follows saves its result instead; gradients that wait for those of another branch are left
    out, and on CUDA what a step holds for several parameters at once.

    Args:
        composition: the model.
        times: of the suite's run, which holds what each brick was measured to hold.
    """
    used = [piece.brick for piece in composition.pieces] + [brick for brick, _ in composition.updates]
    unknown = [brick for brick in dict.fromkeys(used) if not _is_known(times.bricks.get(brick))]
    if unknown:
        return [], f"the memory of {len(unknown)} of {len(set(used))} bricks was not measured"
    held = [times.bricks[piece.brick] for piece in composition.pieces]
    if composition.mode == "infer":
        moment = _inference_peak(composition, held)
    else:
        updates = [(times.bricks[brick], number) for brick, number in composition.updates]
        step_bytes = max((row["peak_bytes"] for row, _ in updates), default=0.0)
        moment = _training_peak(held, sum(number * row["weights_bytes"] for row, number in updates), step_bytes)
        moment["optimizer_state"] = sum(number * row["saved_bytes"] for row, number in updates)
    # Modules that were not called have weights too.
    parameter_bytes = 2 if composition.precision == "pure-bf16" else 4
    moment["weights"] = max(composition.weights_bytes, parameter_bytes * composition.num_parameters)
    phase = moment.pop("phase")
    return [{"kind": "peak", "method": "constructed", "phase": phase, "category": category, "bytes": float(num_bytes)}
            for category, num_bytes in moment.items()], None  # fmt: skip


def _is_known(row: dict[Any, Any] | None) -> bool:
    if row is None:
        return False
    needed = ("weights_bytes", "saved_bytes", "peak_bytes") if row["kind"] == "update" else _NEEDED
    return all(pd.notna(row[name]) for name in needed)


def _inference_peak(composition: Composition, held: list[dict[Any, Any]]) -> dict[str, Any]:
    last_reader = _last_readers(composition, held)
    best: dict[str, Any] = {"phase": "forward", "activations": 0.0, "temporary": 0.0}
    for number, row in enumerate(held):
        waiting = sum(held[piece]["outputs_bytes"] for piece in range(number) if last_reader[piece] >= number)
        moment = _moment("forward", waiting + row["outputs_bytes"], row)
        best = max(best, moment, key=_total)
    return best


def _last_readers(composition: Composition, held: list[dict[Any, Any]]) -> list[int]:
    """The piece after which what a piece gave is free; what is a result of the model never is.

    What a piece gives without holding bytes of its own is its inputs, changed in place or seen otherwise: they wait for
    its readers too.
    """
    last = list(range(len(composition.pieces)))
    for source in composition.outputs:
        if source is not None:
            last[source[0]] = len(last)
    for number in reversed(range(len(last))):
        for source in composition.pieces[number].inputs:
            if source is not None:
                reader = last[number] if not held[number]["outputs_bytes"] else number
                last[source[0]] = max(last[source[0]], reader)
    return last


def _training_peak(held: list[dict[Any, Any]], gradients: float, step_bytes: float) -> dict[str, Any]:
    kept = [row["outputs_bytes"] + (0.0 if pd.isna(row["saved_bytes"]) else row["saved_bytes"]) for row in held]
    total = sum(row["weights_bytes"] for row in held)
    best: dict[str, Any] = {"phase": "update", "activations": 0.0, "temporary": step_bytes, "gradients": gradients}
    before, weights_before = 0.0, 0.0
    for row, own in zip(held, kept, strict=True):
        weights_before += row["weights_bytes"]
        moment = _moment("backward", before + own, row, own)
        moment["temporary"] += row["outputs_bytes"]  # their gradients
        moment["gradients"] = gradients * (1 - weights_before / total) if total else 0.0
        best = max(best, moment, key=_total)
        before += own
    return best


def _moment(phase: str, activations: float, row: dict[Any, Any], own: float | None = None) -> dict[str, Any]:
    """What is held while a piece runs: its peak counts what it gives (and saves) too."""
    own = row["outputs_bytes"] if own is None else own
    return {"phase": phase, "activations": activations, "temporary": max(0.0, row["peak_bytes"] - own)}


def _total(moment: dict[str, Any]) -> float:
    return float(moment["activations"] + moment["temporary"] + moment.get("gradients", 0.0))
