"""Fit of a correction of constructed latencies, and the choice of the models to measure for it."""

import json
from collections.abc import Sequence
from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from charact.analysis.common.significance import Values
from charact.bricks.analysis.construction import Correction
from charact.core.errors import UserError
from charact.core.operator_types import operator_type

if TYPE_CHECKING:
    from charact.bricks.analysis.construction import Construction


MIN_MODELS = 2
COEFFICIENTS = ("factor", "module_call_s", "piece_s", "backward_start_s")
_NEUTRAL = np.array([1.0, 0.0, 0.0, 0.0])
_LOWEST = np.array([0.5, 0.0, -5e-6, -20e-6])
_HIGHEST = np.array([2.0, 50e-6, 20e-6, 20e-6])
"""Plausible bounds; negative if timing a brick separately costs more than running it in the model."""
_REGULARIZATION = 0.45 * np.array([1.0, 0.03e6, 0.1e6, 0.03e6])
"""Regularization weights towards the neutral values: a factor of 1.1 weighs as much as a model with an error of .045.

Chosen for the best generalization from 8 of 85 random models to 43 others (one machine).
"""
_HUBER_FRAC = 0.02
"""Huber threshold: larger errors count linearly, so that outliers have limited influence."""
_NUM_TURNS = 12
"""Number of steps of the reweighted least squares."""
_TIMES = ("of the plain sum", "of calls of modules", "of segments", "of starts of backward passes")


def fit_correction(constructions: "Sequence[Construction]", measured_s: Sequence[float]) -> Correction:
    """Fit the correction that brings constructed latencies closest to measured ones.

    Minimizes the Huber loss of relative errors within bounds, regularized towards factor 1 and overheads 0, since few
    models are available and the plain sum is a good estimate. A coefficient that no model depends on stays at 0, with
    the reason. The order of the models does not matter.

    *Error*: `error_frac` comes from leave-one-out cross-validation; it does not apply to dissimilar models.
    """
    for construction in constructions:
        if construction.sum_s is None:
            raise UserError(f"{construction.composition.model} cannot calibrate: {construction.reason}")
    if len(constructions) < MIN_MODELS:
        raise UserError(f"a correction needs {MIN_MODELS} measured models, there are {len(constructions)}: name more")
    # What the coefficients multiply, over the measured time.
    shares = np.array([[construction.sum_s or 0.0, construction.composition.num_module_calls,
                        len(construction.composition.pieces), construction.num_backward_starts]
                       for construction in constructions]) / np.asarray(measured_s)[:, None]
    absent = [number for number in range(len(COEFFICIENTS)) if not shares[:, number].any()]
    rows = range(len(shares))
    errors = [float(shares[row] @ _fitted(np.delete(shares, row, axis=0))) - 1 for row in rows]
    return Correction(
        **dict(zip(COEFFICIENTS, _fitted(shares).tolist(), strict=True)),
        reasons={COEFFICIENTS[number]: f"the models have none {_TIMES[number]}" for number in absent},
        models=[construction.composition.model for construction in constructions],
        plain_error_frac=_mean_error(shares @ _NEUTRAL - 1), error_frac=_mean_error(errors),
        worst_error_frac=float(np.abs(errors).max()),
    )  # fmt: skip


def _fitted(shares: Values) -> Values:
    """Return the coefficients of the Huber loss, by iteratively reweighted least squares."""
    weights, values = np.ones(len(shares)), _NEUTRAL
    for _ in range(_NUM_TURNS):
        values = _bounded(shares, weights)
        weights = np.sqrt(_HUBER_FRAC / np.maximum(np.abs(shares @ values - 1), _HUBER_FRAC))
    return values


def _bounded(shares: Values, weights: Values) -> Values:
    """Solve bounded, regularized least squares.

    With few coefficients, all combinations of free and bounded coefficients can be tried, all free first; the best
    feasible one is the solution.
    """
    columns = np.vstack([shares * weights[:, None], np.diag(_REGULARIZATION)])
    wanted = np.concatenate([weights, _REGULARIZATION * _NEUTRAL])
    present = [number for number in range(len(COEFFICIENTS)) if shares[:, number].any()]
    best, least = _NEUTRAL, np.inf
    for sides in product((None, _LOWEST, _HIGHEST), repeat=len(present)):
        values = np.where(np.isin(np.arange(len(COEFFICIENTS)), present), 0.0, _NEUTRAL)
        free = [number for number, side in zip(present, sides, strict=True) if side is None]
        for number, side in zip(present, sides, strict=True):
            values[number] = 0.0 if side is None else side[number]
        sizes = np.linalg.norm(columns[:, free], axis=0)  # they differ by orders of magnitude
        values[free] = np.linalg.lstsq(columns[:, free] / sizes, wanted - columns @ values, rcond=None)[0] / sizes
        squares = float(((columns @ values - wanted) ** 2).sum())
        if squares < least and np.all(values >= _LOWEST) and np.all(values <= _HIGHEST):
            best, least = values, squares
            if len(free) == len(present):
                break
    return best


def _mean_error(errors: Sequence[float] | Values) -> float:
    return fmean(np.abs(errors).tolist())


_LEAST_GAIN_FRAC = 1e-9
"""Smallest relative gain of an exchange; smaller ones are rounding errors and could repeat forever."""


def typical(constructions: "Sequence[Construction]", number: int) -> "list[Construction]":
    """Return `number` typical models, sorted by time; all models if there are no more.

    The distance of two models is the Hellinger distance of their time shares by operator type. The models are medoids
    (L. Kaufman and P. J. Rousseeuw, *Finding Groups in Data*, 1990): no single exchange reduces the sum of distances
    to the nearest medoid. The order of the models does not matter.
    """
    ordered = sorted(constructions, key=lambda each: each.composition.case)
    if len(ordered) > number:
        ordered = [ordered[place] for place in _medoids(_distances([_shares(each) for each in ordered]), number)]
    return sorted(ordered, key=lambda each: each.sum_s or 0.0)


def _shares(construction: "Construction") -> dict[str, float]:
    """Return shares of the model's time by operator type; the types in a segment share its time equally."""
    times_s: dict[str, float] = {}
    for piece in construction.pieces:
        types = ["optimizer"] if piece["phase"] == "update" else [
            operator_type(layer) for layer in json.loads(str(piece["layer_types"] or "[]"))] or ["other"]
        for type in types:
            times_s[type] = times_s.get(type, 0.0) + (piece["time_s"] or 0.0) / len(types)
    whole_s = sum(times_s.values()) or 1.0
    return {type: time_s / whole_s for type, time_s in times_s.items()}


def _distances(shares: Sequence[dict[str, float]]) -> Values:
    """Return pairwise distances of models."""
    types = sorted({type for each in shares for type in each})
    roots = np.sqrt([[each.get(type, 0.0) for type in types] for each in shares])
    return np.asarray(np.linalg.norm(roots[:, None] - roots[None], axis=-1))


def _medoids(distances: Values, number: int) -> list[int]:
    """Return indices of medoids, added greedily, then exchanged one by one while that helps."""
    chosen: list[int] = []
    for _ in range(number):
        chosen.append(_best(distances, chosen)[0])
    total, improved = np.inf, True
    while improved:
        improved = False
        for place in range(number):
            best, reached = _best(distances, chosen[:place] + chosen[place + 1:])
            if reached < total * (1 - _LEAST_GAIN_FRAC):
                chosen[place], total, improved = best, reached, True
    return chosen


def _best(distances: Values, chosen: Sequence[int]) -> tuple[int, float]:
    """Return the medoid that, added to `chosen`, gives the smallest sum of distances, and that sum."""
    nearest = distances[list(chosen)].min(axis=0, initial=np.inf)
    totals = np.minimum(distances, nearest).sum(axis=1)
    totals[list(chosen)] = np.inf
    return int(totals.argmin()), float(totals.min())
