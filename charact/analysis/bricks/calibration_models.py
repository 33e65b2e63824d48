"""Choice of typical models for calibration, by the operator types that their time is spent on."""

import json
from collections.abc import Sequence

import numpy as np

from charact.analysis.bricks.construction import Construction
from charact.analysis.common.significance import Values
from charact.core.operator_types import operator_type

_LEAST_GAIN_FRAC = 1e-9
"""Smallest relative gain of an exchange; smaller ones are rounding errors and could repeat forever."""


def typical(constructions: Sequence[Construction], number: int) -> list[Construction]:
    """Return `number` typical models, sorted by time; all models if there are no more.

    The distance of two models is the Hellinger distance of their time shares by operator type. The result are medoids
    (L. Kaufman and P. J. Rousseeuw, *Finding Groups in Data*, 1990): no single exchange reduces the sum of distances
    to the nearest medoid. The order of the models does not matter.

    Args:
        constructions: of different models, each with a plain sum.
        number: of models, at least 1.
    """
    ordered = sorted(constructions, key=lambda each: each.composition.case)
    if len(ordered) > number:
        ordered = [ordered[place] for place in _medoids(_distances([_shares(each) for each in ordered]), number)]
    return sorted(ordered, key=lambda each: each.sum_s or 0.0)


def _shares(construction: Construction) -> dict[str, float]:
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
