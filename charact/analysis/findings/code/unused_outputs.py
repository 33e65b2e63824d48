"""A layer computes outputs that nothing uses: in a training the loss, in an inference any operator after the model."""

import json
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import pandas as pd

from charact.analysis.findings._finding import Finding
from charact.analysis.findings._watched_case import WatchedCase
from charact.core.units import share

_MUCH_FRAC = 0.3
"""Minimum share of a layer's outputs that is not used."""
_LEAST_FRAC = 0.1
"""Minimum share of an iteration that they take: to select what is used has a cost, too."""
_PRODUCTS = frozenset({"aten::mm", "aten::addmm"})
_SELECTING = frozenset({"aten::select", "aten::slice", "aten::narrow"})
_VIEWS = _SELECTING | frozenset({
    "aten::alias", "aten::as_strided", "aten::detach", "aten::empty_like", "aten::expand", "aten::permute",
    "aten::resolve_conj", "aten::resolve_neg", "aten::reshape", "aten::squeeze", "aten::transpose",
    "aten::_unsafe_view", "aten::unsqueeze", "aten::view"})
"""Operators that read no element of their input."""


class _Unused(NamedTuple):
    """Rows of a layer's output in one iteration, and the time (s) that the unused ones take."""

    layer: str
    num_rows: int
    unused_frac: float
    unused_s: float


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if a large share of layers' outputs is not used; it names the slowest one."""
    layers = sorted(_without_gradient(case) if case.trains else _never_read(case), key=lambda one: -one.unused_s)
    layers = [one for one in layers if one.unused_frac > _MUCH_FRAC]
    if not layers:
        return
    slowest, layers_s = layers[0], sum(one.unused_s for one in layers)
    loss_s = case.phase_s["loss"] + _backward_of_loss_s(case, slowest.num_rows) if case.trains else 0.0
    most_s = layers_s + slowest.unused_frac * loss_s
    saving = case.saving(0.7 * layers_s, most_s)
    if saving is None or most_s < _LEAST_FRAC * case.iteration_s:
        return
    if case.trains:
        user, are_unused, select = "the loss", "have no gradient", "hidden[labels != ignore_index] or hidden[:, -1]"
    else:
        user, are_unused, select = "the program", "are read by no operator", "hidden[:, -1]"
    yield Finding(
        f"the layer {slowest.layer} computes outputs that {user} does not use",
        f"select what {user} uses before the layer, such as {select}; compute {slowest.layer} "
        f"{'and the loss ' if case.trains else ''}for these only", saving,
        (f"{share(slowest.unused_frac)} of the {slowest.num_rows:,} outputs of {slowest.layer} in one iteration "
         f"{are_unused}",),
        "medium", phase="forward", layer=slowest.layer)


def _without_gradient(case: WatchedCase) -> Iterator[_Unused]:
    """Yield the layers with outputs whose gradient is zero."""
    times: dict[Any, float] = case.operators.groupby("layer")["time_s"].sum().to_dict()
    for facts in case.inspection.get("unused_outputs") or []:
        unused_frac = 1 - facts["num_used_rows"] / facts["num_rows"]
        if facts["layer"] in times:
            yield _Unused(facts["layer"], facts["num_rows"], unused_frac, unused_frac * times[facts["layer"]])


def _never_read(case: WatchedCase) -> Iterator[_Unused]:
    """Yield the layers whose output is only read after a selection.

    An operator that takes a tensor of the output's shape is taken for one that reads all of it.
    """
    rows = case.operators[case.operators["input_shapes"].notna()]
    outside = rows[rows["layer"].isna()]
    reads = [(operator, shape) for operator, shapes in zip(outside["operator"], outside["input_shapes"], strict=True)
             for shape in json.loads(shapes) if shape]
    products = rows[rows["layer"].notna() & rows["operator"].isin(_PRODUCTS) & (rows["num_calls"] == 1)]
    for layer, shapes, time_s in zip(products["layer"], products["input_shapes"], products["time_s"], strict=True):
        *_, (num_rows, _), (_, width) = json.loads(shapes)
        used = _num_rows_read(reads, num_rows, width)
        if used is not None and not _is_read_inside(rows, layer, num_rows, width):
            yield _Unused(layer, num_rows, 1 - used / num_rows, (1 - used / num_rows) * time_s)


def _num_rows_read(reads: list[tuple[str, list[int]]], num_rows: int, width: int) -> int | None:
    """Return how many rows of a width operators read from an output; None if all, or if it was not selected from."""
    of_width = [(operator, math.prod(shape[:-1])) for operator, shape in reads if shape[-1] == width]
    of_output = {operator for operator, number in of_width if number == num_rows}
    if not of_output & _SELECTING or of_output - _VIEWS:
        return None
    return max((number for operator, number in of_width if operator not in _VIEWS and number < num_rows), default=None)


def _is_read_inside(rows: pd.DataFrame, layer: str, num_rows: int, width: int) -> bool:
    """Return whether an operator of another layer takes a tensor of the output's shape."""
    others = rows[rows["layer"].notna() & (rows["layer"] != layer) & ~rows["operator"].isin(_VIEWS)]
    return any(shape and shape[-1] == width and math.prod(shape[:-1]) == num_rows
               for shapes in others["input_shapes"] for shape in json.loads(shapes))


def _backward_of_loss_s(case: WatchedCase, num_rows: int) -> float:
    """Return the time (s) of a backward's operators outside of layers that take a tensor with so many rows."""
    rows = case.operators
    rows = rows[(rows["phase"] == "backward") & rows["layer"].isna()]
    return float(rows.loc[rows["input_shapes"].fillna("").str.contains(f"[{num_rows},", regex=False), "time_s"].sum())
