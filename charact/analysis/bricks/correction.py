"""Learning, from models that were measured, what bricks cannot see: the calling of modules, and what a piece costs."""

from collections.abc import Sequence
from itertools import combinations, product
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from charact.analysis.bricks.construction import Construction
from charact.analysis.comparing.statistics import Values
from charact.corrections import Correction
from charact.errors import UserError

MIN_MODELS = 2
_MODELS_EACH = 2
"""So many models a coefficient: fewer are matched by any coefficient, and tell nothing of other models."""
_WORTH_FRAC = 0.1
"""By how much a further coefficient must reduce the error on models that were left out."""
_SMALLEST_FRAC = 1e-6
"""Errors below this are rounding."""

COEFFICIENTS = ("factor", "module_call_s", "piece_s", "backward_start_s")
_NEUTRAL = np.array([1.0, 0.0, 0.0, 0.0])
_LOWEST = np.array([0.5, 0.0, -5e-6, -20e-6])
_HIGHEST = np.array([2.0, 50e-6, 20e-6, 20e-6])
"""What can be true of a machine; negative where timing a brick by itself costs more than it does in the model."""
_TIMES = ("of the plain sum", "of calls of modules", "of pieces", "of starts of backward passes")


def fit_correction(constructions: Sequence[Construction], measured_s: Sequence[float]) -> Correction:
    """The correction by which constructed latencies come nearest to measured ones.

    Coefficients are those of the least squares of relative errors, within bounds. Which of them are told by the models
    is tried: every model in turn is left out and predicted by the others, and a coefficient is used where that lowers
    the mean |error| by a tenth. The others stay at 1 or 0, with the reason. The order of the models does not matter.

    *Error*: `error_frac` is that of models that were left out; it is a little too low, as coefficients were chosen by
    it, and tells nothing of models unlike these.

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
    by_choice = {chosen: _left_out_errors(shares, chosen) for chosen in _choices(shares)}
    chosen = _simplest_good(by_choice)
    fitted, errors = _fitted(shares, chosen), by_choice[chosen]
    values = dict(zip(COEFFICIENTS, fitted.tolist(), strict=True))
    return Correction(
        **values, reasons={COEFFICIENTS[number]: _why_not(shares, number, by_choice, chosen)
                           for number in range(len(COEFFICIENTS)) if number not in chosen},
        models=[construction.composition.model for construction in constructions],
        plain_error_frac=_mean_error(shares @ _NEUTRAL - 1), error_frac=_mean_error(errors),
        worst_error_frac=float(np.abs(errors).max()),
    )  # fmt: skip


def _parts(construction: Construction) -> list[float]:
    """What the coefficients are multiplied by."""
    composition = construction.composition
    assert construction.sum_s is not None  # was looked at
    return [construction.sum_s, composition.num_module_calls, len(composition.pieces), construction.num_backward_starts]


def _choices(shares: Values) -> list[tuple[int, ...]]:
    """Sets of coefficients that so many models can tell, the smallest first."""
    present = [number for number in range(len(COEFFICIENTS)) if shares[:, number].any()]
    most = len(shares) // _MODELS_EACH
    return [chosen for size in range(most + 1) for chosen in combinations(present, size)]


def _simplest_good(by_choice: dict[tuple[int, ...], Values]) -> tuple[int, ...]:
    """The set with the least error, unless one with fewer coefficients is nearly as good."""
    best: tuple[int, ...] = ()
    for size in range(len(COEFFICIENTS) + 1):
        of_size = [chosen for chosen in by_choice if len(chosen) == size]
        if not of_size:
            break
        found = min(of_size, key=lambda chosen: _mean_error(by_choice[chosen]))
        allowed = _mean_error(by_choice[best]) * (1 - _WORTH_FRAC) ** (size - len(best))
        if _mean_error(by_choice[found]) < allowed - _SMALLEST_FRAC:
            best = found
    return best


def _left_out_errors(shares: Values, chosen: tuple[int, ...]) -> Values:
    """Relative error of each model, predicted by what the others teach."""
    rows = range(len(shares))
    return np.array([float(shares[row] @ _fitted(np.delete(shares, row, axis=0), chosen)) - 1 for row in rows])


def _fitted(shares: Values, chosen: tuple[int, ...]) -> Values:
    """Coefficients of the least squares within their bounds; those that are not chosen are neutral.

    With few coefficients every way in which some of them lie at a bound can be tried: the best that is within the
    bounds is the solution.
    """
    best, least = _NEUTRAL, np.inf
    for sides in product((None, _LOWEST, _HIGHEST), repeat=len(chosen)):
        values = _NEUTRAL.copy()
        free = [number for number, side in zip(chosen, sides, strict=True) if side is None]
        for number, side in zip(chosen, sides, strict=True):
            values[number] = 0.0 if side is None else side[number]
        values[free] = _solved(shares[:, free], 1 - shares @ values)
        squares = float(((shares @ values - 1) ** 2).sum())
        if squares < least and np.all(values >= _LOWEST) and np.all(values <= _HIGHEST):
            best, least = values, squares
    return best


def _solved(columns: Values, wanted: Values) -> NDArray[np.float64]:
    """Least squares; columns differ by orders of magnitude, and are brought to one."""
    sizes = np.linalg.norm(columns, axis=0)
    sizes[sizes == 0] = 1.0
    return np.asarray(np.linalg.lstsq(columns / sizes, wanted, rcond=None)[0] / sizes)


def _mean_error(errors: Values) -> float:
    return fmean(np.abs(errors).tolist())


def _why_not(shares: Values, number: int, by_choice: dict[tuple[int, ...], Values], chosen: tuple[int, ...]) -> str:
    """Why a coefficient was not fitted."""
    if not shares[:, number].any():
        return f"the models have none {_TIMES[number]}"
    if tuple(sorted((*chosen, number))) not in by_choice:
        return f"{len(shares)} models tell {len(shares) // _MODELS_EACH} of the coefficients"
    return "it does not reduce the error on models that are left out"
