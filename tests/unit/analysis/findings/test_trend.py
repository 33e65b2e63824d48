"""Slopes of series: known ones are within the interval, and noise has none."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from charact.analysis.findings._trend import steady_growth, trend


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


def test_only_a_series_that_grows_throughout_grows_steadily() -> None:
    at_first = series(0.0, noise=0.001)
    at_first[:100] = np.linspace(0.0, 5.0, 100)
    assert trend(at_first) is not None
    assert steady_growth(at_first, 1.0) is None
    steady = steady_growth(series(0.01), 2.0)
    assert steady is not None
    assert steady.growth == pytest.approx(3.0, rel=0.1)
    assert steady_growth(series(0.01), 4.0) is None
    assert steady_growth(series(-0.01), 1.0) is None


def test_most_records_are_read_without_scipy() -> None:
    code = ("import sys, numpy, pandas; from charact.analysis.findings._trend import steady_growth; "
            "steady_growth(pandas.Series(numpy.random.default_rng(1).normal(5, 1, 300)), 3.0); "
            "assert 'scipy' not in sys.modules")
    subprocess.run([sys.executable, "-c", code], check=True)
