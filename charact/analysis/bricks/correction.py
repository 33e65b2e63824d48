"""Learning, from models that were measured, what bricks cannot see: the calling of modules, and what a piece costs."""

from collections.abc import Sequence
from itertools import product
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from charact.analysis.bricks.construction import Construction
from charact.analysis.bricks.correction_cache import Correction
from charact.analysis.common.significance import Values
from charact.core.errors import UserError

MIN_MODELS = 2
COEFFICIENTS = ("factor", "module_call_s", "piece_s", "backward_start_s")
_NEUTRAL = np.array([1.0, 0.0, 0.0, 0.0])
_LOWEST = np.array([0.5, 0.0, -5e-6, -20e-6])
_HIGHEST = np.array([2.0, 50e-6, 20e-6, 20e-6])
"""What can be true of a machine; negative where timing a brick by itself costs more than it does in the model."""
_HELD = 0.45 * np.array([1.0, 0.03e6, 0.1e6, 0.03e6])
"""How strongly each coefficient is held at its neutral value: a factor of 1.1 weighs as a model that is off by .045.

Chosen where 8 models, drawn at random from 85, taught most about 43 others (128 models, one machine).
"""
_STRAIGHT_FRAC = 0.02
"""Errors of models count by their squares up to this, and by their amount beyond: one odd model does not decide."""
_NUM_TURNS = 12
_TIMES = ("of the plain sum", "of calls of modules", "of pieces", "of starts of backward passes")


def fit_correction(constructions: Sequence[Construction], measured_s: Sequence[float]) -> Correction:
    """The correction by which constructed latencies come nearest to measured ones.

    Coefficients have the least sum of relative errors, squared where they are small, within bounds, and are held near 1
    and 0: few models tell little, and the plain sum is a good guess. What no model has any of stays at 0, with the
    reason. The order of the models does not matter.

    *Error*: `error_frac` is that of models that were left out in turn; it tells nothing of models unlike these.

    Args:
        constructions: of different models, on one machine.
        measured_s: median iteration (s) of each of them.

    Raises:
        UserError: there are fewer than two models, or one of them has no plain sum.
    """
    for construction in constructions:
        if construction.sum_s is None:
            raise UserError(f"{construction.composition.model} cannot calibrate: {construction.reason}")
    if len(constructions) < MIN_MODELS:
        raise UserError(f"a correction needs {MIN_MODELS} models that were measured, there are {len(constructions)}: "
                        "name more")
    shares = np.array([_parts(construction) for construction in constructions]) / np.asarray(measured_s)[:, None]
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


def _parts(construction: Construction) -> list[float]:
    """What the coefficients are multiplied by."""
    composition = construction.composition
    assert construction.sum_s is not None  # was looked at
    return [construction.sum_s, composition.num_module_calls, len(composition.pieces), construction.num_backward_starts]


def _fitted(shares: Values) -> Values:
    """Coefficients; errors beyond `_STRAIGHT_FRAC` lose weight turn by turn until they count by their amount."""
    weights, values = np.ones(len(shares)), _NEUTRAL
    for _ in range(_NUM_TURNS):
        values = _bounded(shares, weights)
        weights = np.sqrt(_STRAIGHT_FRAC / np.maximum(np.abs(shares @ values - 1), _STRAIGHT_FRAC))
    return values


def _bounded(shares: Values, weights: Values) -> Values:
    """Least squares of weighted errors and of what holds the coefficients, within bounds.

    With few coefficients every way in which some of them lie at a bound can be tried, the first being that none does:
    the best that is within the bounds is the solution.
    """
    columns = np.vstack([shares * weights[:, None], np.diag(_HELD)])
    wanted = np.concatenate([weights, _HELD * _NEUTRAL])
    present = [number for number in range(len(COEFFICIENTS)) if shares[:, number].any()]
    best, least = _NEUTRAL, np.inf
    for sides in product((None, _LOWEST, _HIGHEST), repeat=len(present)):
        values = np.where(np.isin(np.arange(len(COEFFICIENTS)), present), 0.0, _NEUTRAL)
        free = [number for number, side in zip(present, sides, strict=True) if side is None]
        for number, side in zip(present, sides, strict=True):
            values[number] = 0.0 if side is None else side[number]
        values[free] = _solved(columns[:, free], wanted - columns @ values)
        squares = float(((columns @ values - wanted) ** 2).sum())
        if squares < least and np.all(values >= _LOWEST) and np.all(values <= _HIGHEST):
            best, least = values, squares
            if len(free) == len(present):
                break
    return best


def _solved(columns: Values, wanted: Values) -> NDArray[np.float64]:
    """Least squares; columns differ by orders of magnitude, and are brought to one."""
    sizes = np.linalg.norm(columns, axis=0)
    return np.asarray(np.linalg.lstsq(columns / sizes, wanted, rcond=None)[0] / sizes)


def _mean_error(errors: Sequence[float] | Values) -> float:
    return fmean(np.abs(errors).tolist())
