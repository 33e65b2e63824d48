"""A model's peak of memory, constructed from what its bricks hold."""

import json
from collections.abc import Sequence
from typing import Any

import pandas as pd

from charact.analysis.bricks.times import BrickTimes
from charact.bricks.suite.composition import Composition
from charact.record.reader import Rows

_NEEDED = ("weights_bytes", "outputs_bytes", "peak_bytes")


def constructed_memory(composition: Composition, times: BrickTimes) -> tuple[Rows, str | None]:
    """Rows of the table `memory` (bytes at the peak by category), or none with the reason.

    Weights and buffers; the model's input; what pieces gave and others have yet to read; what the piece itself holds
    for a moment. In training what was saved stays until the backward pass that reads it, gradients wait for those of
    other branches, the gradients of weights grow towards the iteration's beginning, and the optimizer's state is always
    there. Its step holds what the largest of its bricks does.

    *Error*: modelled; of nine trainings on a CPU six came within 0.2 % of what was measured, the others to 0.93 to
    0.97. What the model gives is let go of once it is read, though a program may keep it. What a step still holds of
    the parameter before is left out, and on CUDA what it holds for several at once.

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
        if any(not isinstance(row["held"], str) for row in held):
            return [], "the run does not tell what its bricks save: run the suite anew"
        if not _fit(composition, held):
            return [], "the composition reads what its bricks do not give: generate the suite anew"
        gradients = sum(number * row["weights_bytes"] for row, number in updates)
        moment = _training_peak(composition, held, gradients, step_bytes)
        moment["optimizer_state"] = sum(number * row["saved_bytes"] for row, number in updates)
    # Modules that were not called have weights too.
    parameter_bytes = 2 if composition.precision == "pure-bf16" else 4
    moment["weights"] = max(composition.weights_bytes, parameter_bytes * composition.num_parameters)
    if composition.input_bytes is not None:
        moment["input"] = composition.input_bytes
    phase = moment.pop("phase")
    return [{"kind": "peak", "method": "constructed", "phase": phase, "category": category, "bytes": float(num_bytes)}
            for category, num_bytes in moment.items()], None  # fmt: skip


def _is_known(row: dict[Any, Any] | None) -> bool:
    if row is None:
        return False
    needed = ("weights_bytes", "saved_bytes", "peak_bytes") if row["kind"] == "update" else _NEEDED
    return all(pd.notna(row[name]) for name in needed)


def _fit(composition: Composition, held: Sequence[dict[Any, Any]]) -> bool:
    """Whether pieces have the inputs and outputs of their bricks: a file that was changed by hand may say otherwise."""
    told = [json.loads(row["held"]) for row in held]
    sources = [source for piece in composition.pieces for source in piece.inputs] + list(composition.outputs)
    given = all(source is None or 0 <= source[1] < len(told[source[0]]["outputs"]) for source in sources)
    shared = [[each["input"] for each in brick["outputs"] if each["input"] is not None] for brick in told]
    return given and all(max(brick["saved_inputs"] + inputs, default=-1) < len(piece.inputs)
                         for piece, brick, inputs in zip(composition.pieces, told, shared, strict=True))


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


class _Values:
    """What pieces give, by the memory that it lies in: how much that is, and who makes, reads and saves it.

    Numbers are those of pieces. What is changed in place, or seen otherwise, lies where it lay before.
    """

    def __init__(self, composition: Composition, held: Sequence[dict[Any, Any]]) -> None:
        self.num_bytes: list[float] = []
        self.made_by: list[int] = []
        self.first_saved_by: dict[int, int] = {}
        self.last_differentiated_by: dict[int, int] = {}
        self.carries: list[bool] = []
        self._given_by: list[set[int | None]] = []
        self._places: dict[tuple[int, int], int | None] = {}
        for number, (piece, row) in enumerate(zip(composition.pieces, held, strict=True)):
            told = json.loads(row["held"])
            read = [None if source is None else self._places[source] for source in piece.inputs]
            saved = [read[each] for each in told["saved_inputs"]]
            saved += [place for place in self._given(number, read, told["outputs"]) if place is not None]
            for place in saved:
                if place is not None:
                    self.first_saved_by.setdefault(place, number)
            if pd.notna(row["saved_bytes"]):
                self.last_differentiated_by |= {place: number for place in read if place is not None}
        results = {self._places[source] for source in composition.outputs if source is not None}
        self.first_saved_by |= {place: self.made_by[place] for place in results if place is not None}

    def _given(self, number: int, read: Sequence[int | None], outputs: Sequence[dict[str, Any]]) -> list[int | None]:
        """Note what a piece gives; returns the places of what it saves of that."""
        saved = []
        for output, told in enumerate(outputs):
            if told["input"] is None:
                place: int | None = len(self.num_bytes)
                self.num_bytes.append(told["bytes"])
                self.made_by.append(number)
                self.carries.append(told["gradient"])
            else:
                place = read[told["input"]]
            self._places[number, output] = place
            saved += [place] if told["saved"] else []
        self._given_by.append({self._places[number, output] for output in range(len(outputs))})
        return saved

    def saved_bytes(self, number: int) -> float:
        """What lies there when a piece's backward pass begins: saved by it or by one before, or a result."""
        return sum(self.num_bytes[place] for place, by in self.first_saved_by.items() if by <= number)

    def gradients_bytes(self, number: int) -> float:
        """Gradients that wait meanwhile for those of other branches: of older values that a later piece has read."""
        return sum(self.num_bytes[place] for place, by in self.last_differentiated_by.items()
                   if by > number > self.made_by[place] and self.carries[place]
                   and place not in self._given_by[number])


def _training_peak(composition: Composition, held: list[dict[Any, Any]], gradients: float, step_bytes: float
                   ) -> dict[str, Any]:
    values = _Values(composition, held)
    total = sum(row["weights_bytes"] for row in held)
    best: dict[str, Any] = {"phase": "update", "activations": 0.0, "temporary": step_bytes, "gradients": gradients}
    inside, weights_before = 0.0, 0.0
    for number, row in enumerate(held):
        saved = 0.0 if pd.isna(row["saved_bytes"]) else row["saved_bytes"]
        inside += saved
        weights_before += row["weights_bytes"]
        moment = _moment("backward", inside + values.saved_bytes(number), row, row["outputs_bytes"] + saved)
        moment["temporary"] += values.gradients_bytes(number)
        moment["gradients"] = gradients * (1 - weights_before / total) if total else 0.0
        best = max(best, moment, key=_total)
    return best


def _moment(phase: str, activations: float, row: dict[Any, Any], own: float | None = None) -> dict[str, Any]:
    """What is held while a piece runs: its peak counts what it gives (and saves) too."""
    own = row["outputs_bytes"] if own is None else own
    return {"phase": phase, "activations": activations, "temporary": max(0.0, row["peak_bytes"] - own)}


def _total(moment: dict[str, Any]) -> float:
    return float(moment["activations"] + moment["temporary"] + moment.get("gradients", 0.0))
