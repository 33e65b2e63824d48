"""Brick-time regression: predicts times of untimed bricks with a Gaussian process over brick features.

The logarithm of a time is a sum of random terms. All bricks share a trend and smooth deviations over FLOP and bytes.
Bricks with the same layer types share a level. A family shares a level, a trend, and smooth deviations over its sizes.

*Source*: C. E. Rasmussen, C. K. I. Williams, Gaussian Processes for Machine Learning, MIT Press 2006, chapter 2.
"""

from collections.abc import Sequence

import numpy as np

from charact.analysis.common.significance import Values
from charact.bricks.suite.families import Sizes

_OFFSET, _TYPE, _FAMILY = 1.7, 0.5, 0.5
"""Standard deviations of levels (natural logarithms): for all bricks, for the same layer types, for a family."""
_TREND, _FAMILY_TREND = 0.3, 0.05
_BEND, _BEND_LENGTH = 0.5, 2.0
_FAMILY_BEND, _FAMILY_BEND_LENGTH = 0.4, 5.0
"""Standard deviations of trends, and of smooth deviations with their length scales (doublings of a size)."""
_TYPICAL_WORK = 8.0
_NOISE = 0.28
"""Residual standard deviation. All values were fitted on 5,412 bricks of 128 models, one thread of one machine."""


def predict(known: Sequence[Sizes], seconds: Values, wanted: Sequence[Sizes]) -> tuple[Values, Values]:
    """Predict times (s) of bricks, and the standard deviations of the times' natural logarithms.

    Args:
        known: features of timed bricks, at least one.
        seconds: (len(known),) their times, above 0.
        wanted: features of the bricks to predict.
    """
    logs = np.log(seconds)
    covariance = _covariance(known, known) + _NOISE**2 * np.eye(len(known))
    across = _covariance(wanted, known)
    solved = np.linalg.solve(covariance, np.column_stack([logs - logs.mean(), across.T]))
    own = np.concatenate([np.diag(_covariance([each], [each])) for each in wanted])
    left = own - (across * solved[:, 1:].T).sum(axis=1)
    times = np.exp(logs.mean() + across @ solved[:, 0])
    return np.asarray(times), np.sqrt(np.maximum(left, 0.0) + _NOISE**2)


def _covariance(these: Sequence[Sizes], those: Sequence[Sizes]) -> Values:
    work, other_work = (np.array([each.work for each in some]) for some in (these, those))
    types, other_types = (np.array([each.layer_types for each in some]) for some in (these, those))
    covariance = (_OFFSET**2 + _TREND**2 * work @ other_work.T
                  + _BEND**2 * _falling(work, other_work, _BEND_LENGTH)
                  + _TYPE**2 * (types[:, None] == other_types[None]))
    families, others = ([each.family for each in some] for some in (these, those))
    for family in set(families) & set(others):
        rows, columns = (np.flatnonzero(np.array(some) == family) for some in (families, others))
        places, other_places = (
            np.array([some[number].numbers for number in numbers.tolist()]).reshape(len(numbers), -1)
            for some, numbers in ((these, rows), (those, columns)))  # fmt: skip
        covariance[np.ix_(rows, columns)] += (
            _FAMILY**2
            + _FAMILY_TREND**2 * (work[rows] - _TYPICAL_WORK) @ (other_work[columns] - _TYPICAL_WORK).T
            + _FAMILY_BEND**2 * _falling(places, other_places, _FAMILY_BEND_LENGTH))  # fmt: skip
    return np.asarray(covariance)


def _falling(these: Values, those: Values, length: float) -> Values:
    """Return the Gaussian kernel matrix: 1 for equal features, less with greater distance."""
    squares = (these**2).sum(axis=1)[:, None] + (those**2).sum(axis=1)[None] - 2 * these @ those.T
    return np.asarray(np.exp(-np.maximum(squares, 0.0) / (2 * length**2)))
