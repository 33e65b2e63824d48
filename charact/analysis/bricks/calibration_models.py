"""Which models stand for others, by the types of operators that their time goes to."""

import json
from collections.abc import Sequence
from itertools import cycle

import numpy as np

from charact.analysis.bricks.construction import Construction
from charact.analysis.common.significance import Values
from charact.core.operator_types import operator_type

_LEAST_GAIN_FRAC = 1e-9
"""Less is rounding, on which exchanges could go on for ever."""


def typical(constructions: Sequence[Construction], number: int) -> list[Construction]:
    """So many models to which all are near, from short to long; all of them where there are no more.

    Near are models whose time is shared alike by types of operators (Hellinger distance). The chosen ones are medoids
    (L. Kaufman and P. J. Rousseeuw, *Finding Groups in Data*, 1990): the sum of distances to the nearest of them is
    one that taking another in place of any would not lessen. The order of the models does not matter.

    Args:
        constructions: of different models, each with a plain sum.
        number: of models, at least 1.
    """
    ordered = sorted(constructions, key=lambda each: each.composition.case)
    if len(ordered) > number:
        ordered = [ordered[place] for place in _medoids(_distances([_shares(each) for each in ordered]), number)]
    return sorted(ordered, key=lambda each: each.sum_s or 0.0)


def _shares(construction: Construction) -> dict[str, float]:
    """Of the time of all pieces, by type of operator; those of a piece have equal shares of its time."""
    times_s: dict[str, float] = {}
    for piece in construction.pieces:
        types = ["optimizer"] if piece["phase"] == "update" else [
            operator_type(layer) for layer in json.loads(str(piece["layer_types"] or "[]"))] or ["other"]
        for type in types:
            times_s[type] = times_s.get(type, 0.0) + (piece["time_s"] or 0.0) / len(types)
    whole_s = sum(times_s.values()) or 1.0
    return {type: time_s / whole_s for type, time_s in times_s.items()}


def _distances(shares: Sequence[dict[str, float]]) -> Values:
    """Between any two; rows and columns are models."""
    types = sorted({type for each in shares for type in each})
    roots = np.sqrt([[each.get(type, 0.0) for type in types] for each in shares])
    return np.asarray(np.linalg.norm(roots[:, None] - roots[None], axis=-1))


def _medoids(distances: Values, number: int) -> list[int]:
    """Chosen one by one, then exchanged one by one until no exchange helps."""
    chosen: list[int] = []
    for _ in range(number):
        chosen.append(_best(distances, chosen)[0])
    least, num_kept = np.inf, 0
    for place in cycle(range(number)):
        best, total = _best(distances, chosen[:place] + chosen[place + 1:])
        if total < least * (1 - _LEAST_GAIN_FRAC):
            chosen[place], least, num_kept = best, total, 0
        num_kept += 1
        if num_kept == number:
            break
    return chosen


def _best(distances: Values, chosen: Sequence[int]) -> tuple[int, float]:
    """The one beside those chosen that leaves the least sum of distances to the nearest, and that sum."""
    nearest = distances[list(chosen)].min(axis=0, initial=np.inf)
    totals = np.minimum(distances, nearest).sum(axis=1)
    totals[list(chosen)] = np.inf
    return int(totals.argmin()), float(totals.min())
