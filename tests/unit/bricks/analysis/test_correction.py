import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.brick_runs import composition

from charact.bricks.analysis.calibration import COEFFICIENTS, fit_correction
from charact.bricks.analysis.construction import Construction, Correction
from charact.core.errors import UserError

FACTOR, CALL_S = 0.95, 6e-6


def model(sum_s: float, num_calls: int, num_pieces: int, num_starts: int = 0, name: str = "net") -> Construction:
    """A constructed model of which a correction is told only this."""
    made = composition(["a"] * num_pieces, num_module_calls=num_calls, model=name)
    times: Any = SimpleNamespace()
    return Construction(made, times, "host_s", sum_s, num_starts, None, [], [])


def machine(generator: np.random.Generator, num_models: int, noise: float, **others: float
            ) -> tuple[list[Construction], list[float]]:
    """Models of 1 to 100 ms with 10 to 400 calls of modules, and what a machine would measure of them."""
    models, measured = [], []
    for number in range(num_models):
        sum_s = float(10 ** generator.uniform(-3, -1))
        calls, pieces = (int(generator.integers(10, 400)) for _ in range(2))
        models.append(model(sum_s, calls, pieces, name=f"m{number}"))
        true_s = FACTOR * sum_s + CALL_S * calls + others.get("piece_s", 0.0) * pieces
        measured.append(true_s * math.exp(generator.normal(0, noise)))
    return models, measured


def coefficients(found: Correction) -> list[float]:
    return [getattr(found, name) for name in COEFFICIENTS]


def predicted_s(learned: Correction, other: Construction) -> float:
    assert other.sum_s is not None
    return float(learned.factor * other.sum_s + learned.module_call_s * other.composition.num_module_calls
                 + learned.piece_s * len(other.composition.pieces)
                 + learned.backward_start_s * other.num_backward_starts)  # fmt: skip


def test_a_machine_without_noise_is_found() -> None:
    found = fit_correction(*machine(np.random.default_rng(0), 8, 0.0))
    assert found.factor == pytest.approx(FACTOR, abs=0.04)
    assert found.module_call_s == pytest.approx(CALL_S, rel=0.3)
    assert found.error_frac < 0.02 < found.plain_error_frac
    assert found.models == [f"m{number}" for number in range(8)]
    assert found.backward_start_s == 0
    assert found.reasons == {"backward_start_s": "the models have none of starts of backward passes"}


def test_a_noisy_machine_is_found_from_eight_models() -> None:
    """Over many machines with 1 % of noise: other models are predicted far better than by the plain sum."""
    generator = np.random.default_rng(1)
    plain, corrected = [], []
    for _ in range(15):
        learned = fit_correction(*machine(generator, 8, 0.01))
        for other, measured_s in zip(*machine(generator, 5, 0.0), strict=True):
            assert other.sum_s is not None
            plain.append(abs(other.sum_s / measured_s - 1))
            corrected.append(abs(predicted_s(learned, other) / measured_s - 1))
    assert np.mean(plain) > 0.1
    assert np.mean(corrected) < 0.025


def test_what_a_piece_costs_is_found_where_it_matters() -> None:
    found = fit_correction(*machine(np.random.default_rng(2), 8, 0.0, piece_s=4e-6))
    assert found.piece_s > 1e-6
    assert found.error_frac < found.plain_error_frac / 3


def test_starts_of_backward_passes_are_found() -> None:
    sums, starts = [0.01, 0.002, 0.03, 0.001], [40, 70, 10, 90]
    models = [model(sum_s, 0, 0, num) for sum_s, num in zip(sums, starts, strict=True)]
    measured = [sum_s - 3e-6 * num for sum_s, num in zip(sums, starts, strict=True)]
    found = fit_correction(models, measured)
    assert found.backward_start_s == pytest.approx(-3e-6, rel=0.1)
    assert "calls of modules" in found.reasons["module_call_s"]
    assert "segments" in found.reasons["piece_s"]


def test_few_models_are_believed_less() -> None:
    """All take nine tenths of their bricks' time: two say so quietly, a hundred aloud."""
    few, many = (fit_correction([model(0.01, 0, 0)] * number, [0.009] * number).factor for number in (2, 100))
    assert few == pytest.approx(0.9, abs=0.02)
    assert many == pytest.approx(0.9, abs=0.001)
    assert abs(many - 0.9) < abs(few - 0.9)


def test_one_odd_model_does_not_decide() -> None:
    """Seven models are as their bricks say, one takes twice as long."""
    models = [model(0.001 * number, 10 * number, number) for number in range(1, 9)]
    found = fit_correction(models, [0.002, *(0.001 * number for number in range(2, 9))])
    assert all(predicted_s(found, other) == pytest.approx(other.sum_s, rel=0.03) for other in models[1:])


def test_where_the_plain_sum_is_right_nothing_is_corrected() -> None:
    found = fit_correction([model(0.001 * number, 10 * number, number) for number in range(1, 9)],
                           [0.001 * number for number in range(1, 9)])
    assert coefficients(found) == pytest.approx([1.0, 0.0, 0.0, 0.0], abs=1e-9)
    assert found.worst_error_frac < 1e-6


def test_coefficients_stay_within_what_a_machine_can_be() -> None:
    """Calls that seem to give time back are not believed: the rest is the best without them."""
    models = [model(0.01, calls, 0) for calls in (1, 500, 900, 20)]
    found = fit_correction(models, [0.01, 0.0095, 0.009, 0.01])
    assert found.module_call_s == 0.0
    assert 0.9 < found.factor <= 1.0
    far = fit_correction([model(0.01, 0, 0)] * 100, [0.026] * 100)
    assert far.factor == 2.0


def test_the_error_is_that_of_models_that_were_left_out() -> None:
    """One of four takes a tenth longer than its bricks say; the others know nothing of it."""
    found = fit_correction([model(0.01, 0, 0, name=name) for name in "abcd"], [0.01, 0.01, 0.01, 0.0111])
    assert found.worst_error_frac == pytest.approx(1 - 0.01 / 0.0111, rel=0.05)


@given(order=st.permutations(range(6)), seed=st.integers(0, 20))
def test_the_order_of_models_does_not_matter(order: Sequence[int], seed: int) -> None:
    models, measured = machine(np.random.default_rng(seed), 6, 0.02)
    one = fit_correction(models, measured)
    other = fit_correction([models[number] for number in order], [measured[number] for number in order])
    assert coefficients(other) == pytest.approx(coefficients(one), abs=1e-9)
    assert other.error_frac == pytest.approx(one.error_frac)


@given(factor=st.floats(0.7, 1.4), seed=st.integers(0, 20))
def test_a_machine_that_is_otherwise_by_a_factor_is_learned(factor: float, seed: int) -> None:
    models, _ = machine(np.random.default_rng(seed), 8, 0.01)
    plain = [model(each.sum_s or 0.0, 0, 0) for each in models]
    found = fit_correction(plain, [factor * (each.sum_s or 0.0) for each in models])
    assert found.error_frac <= found.plain_error_frac + 1e-9
    assert found.factor == pytest.approx(factor, rel=0.03)


@pytest.mark.parametrize("models", [[], [model(0.01, 1, 1)]])
def test_fewer_than_two_models_are_refused(models: list[Construction]) -> None:
    with pytest.raises(UserError, match=f"needs 2 measured models, there are {len(models)}: name more"):
        fit_correction(models, [0.01] * len(models))


def test_a_model_without_a_sum_is_refused() -> None:
    untimed: Any = SimpleNamespace()
    lacking = Construction(composition(["a"]), untimed, None, None, 0, "brick a has no time", [], [])
    with pytest.raises(UserError, match=r"^net cannot calibrate: brick a has no time$"):
        fit_correction([model(0.01, 1, 1), lacking], [0.01, 0.01])
