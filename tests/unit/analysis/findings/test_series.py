"""Series over iterations: patterns of slow ones, and known slopes; noise has neither."""

import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest

from charact.analysis.findings._series import SlowGroup, is_gradual, num_elements, slow_groups, steady_growth, trend

TYPICAL_S, SLOW_S = 0.01, 0.3


def iterations(num: int, slow: list[int], phase: str = "other", **columns: Any) -> pd.DataFrame:
    """Return rows of `program_iterations` with 10 ms each, but 300 ms at some positions, and little noise."""
    noise = np.random.default_rng(0).uniform(0.98, 1.02, num)
    walls = np.where(np.isin(np.arange(num), slow), SLOW_S, TYPICAL_S) * noise
    phases = {f"{name}_s": np.full(num, np.nan) for name in
              ("data", "forward", "loss", "sample", "backward", "update", "communication", "other")}
    phases["forward_s"] = np.full(num, TYPICAL_S / 2)
    phases[f"{phase}_s"] = walls - TYPICAL_S / 2
    facts = {"compile_s": np.nan, "gc_s": np.nan, "first_of_epoch": 0, "input_shapes": "[[8,3]]"} | columns
    places = {"index": range(num), "position": range(num), "kind": "timed"}
    return pd.DataFrame({**places, "wall_s": walls, **phases, **facts})


def only(rows: pd.DataFrame) -> tuple[str, SlowGroup]:
    ((reason, group),) = slow_groups(rows).items()
    return reason, group


def flags(num: int, where: list[int]) -> list[int]:
    return [int(number in where) for number in range(num)]


def test_equal_and_warm_up_iterations_have_no_group() -> None:
    assert slow_groups(iterations(100, [])) == {}
    assert slow_groups(iterations(120, [], first_of_epoch=flags(120, [0, 30, 60, 90]))) == {}
    kinds = ["warm-up"] * 3 + ["timed"] * 97
    assert slow_groups(iterations(100, [0, 1], kind=kinds)) == {}


@pytest.mark.parametrize("length", [4, 10, 30])
def test_first_iterations_of_epochs(length: int) -> None:
    first = list(range(0, 120, length))
    reason, group = only(iterations(120, first, "data", first_of_epoch=flags(120, first)))
    assert (reason, group.indices, group.phase) == ("epoch_start", first, "data")
    assert group.extra_s == pytest.approx(len(first) * (SLOW_S - TYPICAL_S), rel=0.05)


@pytest.mark.parametrize("shift", [0, -1])
def test_new_shapes_also_if_the_iteration_before_ends_late(shift: int) -> None:
    shapes = ["[[64,8]]"] * 80 + ["[[128,8]]"] * 80 + ["[[192,8]]"] * 80
    slow = [80 + shift, 160 + shift]
    reason, group = only(iterations(240, slow, input_shapes=shapes))
    assert reason == "new_input_shapes"
    assert set(slow) <= set(group.indices)
    assert group.extra_s == pytest.approx(2 * (SLOW_S - TYPICAL_S), rel=0.1)


def test_inputs_collections_and_no_pattern() -> None:
    slow = [7, 31, 50, 51, 77]
    shapes = [f"[[8,{900 if number in slow else 100 + number % 7}]]" for number in range(100)]
    reason, group = only(iterations(100, slow, "forward", input_shapes=shapes))
    assert (reason, group.indices) == ("long_inputs", slow)
    slow = [10, 37, 90, 91]
    gc_s = [0.28 if number in slow else np.nan for number in range(100)]
    assert only(iterations(100, slow, gc_s=gc_s))[0] == "garbage_collection"
    reason, group = only(iterations(100, [10, 37, 38, 90]))
    assert (reason, group.indices, group.period) == ("slow_iterations", [10, 37, 38, 90], None)


@pytest.mark.parametrize("period", [2, 3, 10, 25])
def test_periodic_work(period: int) -> None:
    slow = list(range(period - 1, 200, period))
    reason, group = only(iterations(200, slow))
    assert (reason, group.indices, group.period) == ("periodic_work", slow, period)


def test_two_reasons_share_no_iteration() -> None:
    first, saved = [0, 50, 100, 150], list(range(24, 200, 25))
    groups = slow_groups(iterations(200, first + saved, "data", first_of_epoch=flags(200, first)))
    assert set(groups) == {"epoch_start", "periodic_work"}
    assert groups["epoch_start"].indices == first
    assert groups["periodic_work"].indices == saved
    saved = list(range(24, 200, 25))
    groups = slow_groups(iterations(200, sorted([*saved, 30, 95, 96, 142])))
    assert (groups["periodic_work"].indices, groups["periodic_work"].period) == (saved, 25)
    assert groups["slow_iterations"].indices == [30, 95, 96, 142]


@pytest.mark.parametrize(("num", "flagged", "slow", "slow_s", "extra_s"), [
    (100, range(0, 100, 10), range(0, 70, 10), 0.6, 0.7), (100, range(0, 100, 10), range(0, 60, 10), 0.6, None),
    (100, range(0, 100, 10), range(0, 100, 10), 0.59, None),  # less than 1.2 times the others
    (100, (20, 60), (20, 60), 1.5, 2.0), (100, (20,), (20,), 1.5, None), (6, (1, 3), (1, 3), 1.5, 2.0),
    (5, (1, 3), (1, 3), 1.5, None)])
def test_a_group_is_distinctly_slower(num: int, flagged: Any, slow: Any, slow_s: float, extra_s: float | None) -> None:
    is_slow = np.isin(np.arange(num), slow)
    walls = np.where(is_slow, slow_s, 0.5)
    rows = iterations(num, [], first_of_epoch=flags(num, flagged)).assign(
        wall_s=walls, forward_s=0.1, data_s=walls - 0.3, other_s=0.2 - 0.1 * is_slow)
    group = slow_groups(rows).get("epoch_start")
    assert (group is None) == (extra_s is None)
    if group is not None:
        assert (group.indices, group.phase, group.typical_s, group.slow_s) == (list(flagged), "data", 0.5, slow_s)
        assert group.extra_s == pytest.approx(extra_s)


@pytest.mark.parametrize(("column", "reason"), [("compile_s", "compilation"), ("gc_s", "garbage_collection")])
@pytest.mark.parametrize(("frac", "is_reason"), [(0.3, False), (0.301, True)])
def test_what_takes_three_tenths_of_slow_iterations(column: str, reason: str, frac: float, is_reason: bool) -> None:
    rows = iterations(100, [10, 37, 90, 91])
    rows.loc[[10, 37, 90, 91], column] = frac * rows["wall_s"]
    assert only(rows)[0] == (reason if is_reason else "slow_iterations")


@pytest.mark.parametrize(("num_shapes", "is_new"), [(25, True), (26, False)])
def test_new_shapes_are_a_reason_if_a_quarter_of_the_iterations_or_fewer_has_one(num_shapes: int, is_new: bool) -> None:
    shapes = [f"[[8,{min(number, num_shapes) + 300}]]" for number in range(1, 101)]
    rows = iterations(100, list(range(num_shapes)), input_shapes=shapes)
    assert ("new_input_shapes" in slow_groups(rows)) == is_new


@pytest.mark.parametrize(("length", "is_long"), [(150, False), (151, True)])
def test_inputs_are_long_above_one_and_a_half_times_the_median(length: int, is_long: bool) -> None:
    slow = [7, 31, 50, 51, 77]
    rows = iterations(100, slow, input_shapes=[f"[[8,{length if number in slow else 100}]]" for number in range(100)])
    assert ("long_inputs" in slow_groups(rows)) == is_long
    assert num_elements("[[8,3],[2],[]]") == 27


@pytest.mark.parametrize(("fast", "num_others", "period"), [
    ([], 0, 20), ([39, 119], 0, 20), ([39, 79, 119], 0, None), ([], 15, 20), ([], 16, None)])
def test_a_period_is_regular_and_explains_most(fast: list[int], num_others: int, period: int | None) -> None:
    regular = [number for number in range(19, 200, 20) if number not in fast]
    others = [3, 8, 21, 30, 44, 57, 62, 75, 94, 103, 116, 131, 148, 165, 171, 186][:num_others]
    rows = iterations(200, []).assign(wall_s=np.where(np.isin(np.arange(200), regular + others), 1.25, 0.25))
    group = slow_groups(rows).get("periodic_work")
    assert (group and group.period if group and group.period == 20 else None) == period


@pytest.mark.parametrize("num", [12, 17, 40, 300])
def test_times_without_a_period_have_none(num: int) -> None:
    random = np.random.default_rng(num)
    walls = (0.1 * random.lognormal(0, 0.4, num) * np.where(random.random(num) < 0.2, 3, 1) for _ in range(200))
    groups = [slow_groups(iterations(num, []).assign(wall_s=each)) for each in walls]
    assert sum("periodic_work" in each for each in groups) <= 8  # 4 %, and was a third for 17


def series(slope: float, num: int = 300, noise: float = 0.1, seed: int = 0) -> "pd.Series[float]":
    values = 5.0 + slope * np.arange(num) + np.random.default_rng(seed).normal(0, noise, num)
    return pd.Series(values)


@pytest.mark.parametrize("slope", [0.01, 0.1, -0.05])
def test_a_known_slope_is_within_the_interval(slope: float) -> None:
    lines = [trend(series(slope, seed=seed)) for seed in range(30)]
    assert sum(line is not None and line.low <= slope <= line.high for line in lines) >= 25
    assert all(line is not None and line.slope == pytest.approx(slope, rel=0.1) for line in lines)
    assert lines[0] is not None
    assert lines[0].growth == pytest.approx(300 * slope, rel=0.1)


def test_noise_and_outliers() -> None:
    lines = [trend(series(0.0, seed=seed)) for seed in range(60)]
    assert sum(line is not None and (line.low > 0 or line.high < 0) for line in lines) <= 8
    values = series(0.01)
    values[[3, 77, 200, 290]] = 1e3
    line = trend(values)
    assert line is not None
    assert line.slope == pytest.approx(0.01, rel=0.2)
    assert trend(series(1.0, num=11)) is None
    line = trend(pd.Series(2.0 + 0.5 * np.arange(7, 19), index=range(7, 19)))
    assert line is not None
    assert (*line, line.growth) == pytest.approx((0.5, 0.5, 0.5, 2.0, 12, 6.0))


def test_only_a_series_that_grows_throughout_grows_steadily() -> None:
    at_first = series(0.0, noise=0.001)
    at_first[:100] = np.linspace(0.0, 5.0, 100)
    assert trend(at_first) is not None
    assert steady_growth(at_first, 1.0) is None
    at_last = series(0.0, noise=0.001)
    at_last[200:] += np.linspace(0.0, 5.0, 100)
    assert steady_growth(at_last, 0.5) is None
    steady = steady_growth(series(0.01), 2.0)
    assert steady is not None
    assert steady.growth == pytest.approx(3.0, rel=0.1)
    assert steady_growth(series(0.01), 4.0) is None
    assert steady_growth(series(-0.01), 1.0) is None
    exact = pd.Series(0.5 * np.arange(16))
    assert steady_growth(exact, 8.0) is not None
    assert steady_growth(exact, 8.01) is None
    assert steady_growth(exact, 1.0, 16) is not None
    assert steady_growth(exact, 1.0, 17) is None


@pytest.mark.parametrize("num", [16, 300])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_a_step_is_no_gradual_growth(num: int, noise: float) -> None:
    scatter = noise * np.random.default_rng(0).normal(size=num)
    for place in (num // 4, num // 2, 3 * num // 4):
        assert not is_gradual(pd.Series(np.where(np.arange(num) < place, 1.0, 2.0) + scatter))
    assert is_gradual(pd.Series(np.linspace(1, 2, num) + scatter))
    assert is_gradual(pd.Series(np.linspace(1, 2, num) ** 2 + scatter))


def test_most_records_are_read_without_scipy() -> None:
    code = ("import sys, numpy, pandas; from charact.analysis.findings._series import steady_growth; "
            "steady_growth(pandas.Series(numpy.random.default_rng(1).normal(5, 1, 300)), 3.0); "
            "assert 'scipy' not in sys.modules")
    subprocess.run([sys.executable, "-c", code], check=True)
