"""Quantiles of times from bins, against those of the sorted times."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charact.measure.script.windows.time_histogram import RELATIVE_ERROR, TimeHistogram

TIMES = st.lists(st.integers(0, 2**50), min_size=1, max_size=200)


def histogram(times: list[int]) -> TimeHistogram:
    counted = TimeHistogram()
    for each in times:
        counted.add(each)
    return counted


@given(times=TIMES, share_frac=st.sampled_from([0.01, 0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_within_its_error(times: list[int], share_frac: float) -> None:
    exact = sorted(times)[math.ceil(share_frac * len(times)) - 1]
    found = histogram(times).quantile_ns(share_frac, len(times))
    assert found == pytest.approx(exact, rel=1.001 * RELATIVE_ERROR)


@given(first=TIMES, second=TIMES)
def test_merged_histograms_are_that_of_all_times(first: list[int], second: list[int]) -> None:
    merged = histogram(first)
    merged.merge(histogram(second))
    assert merged == histogram(first + second)
