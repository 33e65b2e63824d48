"""Charts of the studies: a point for each training, at its host-bound share and published speedup."""

import math

import pandas as pd
import pytest

from charact.studies.views.figures import gains, times
from charact.views.charts import Bar, Curve


def test_times_here_have_a_chart_of_their_own() -> None:
    rows = pd.DataFrame({"name": ["a", "b"], "one_s": [3600.0, 7200.0], "two_s": [1800.0, math.nan],
                         "modelled_s": [math.nan, 36000.0]})
    charts, legend = times("a title", rows, {"one_s": "one", "two_s": "two"}, "all", "h")
    published, here = ([mark for mark in chart.marks if isinstance(mark, Bar)] for chart in charts)
    assert [bar.length for bar in published] == [1.0, 0.5, 2.0]
    assert list(charts[0].y.names) == ["a", "", "b"]
    assert [(bar.length, bar.text) for bar in here] == [(10.0, "b, modelled here: 10 h 0 min")]
    colors = dict(legend)
    assert [bar.color for bar in published] == [colors["one"], colors["two"], colors["one"]]
    without, legend = times("a title", rows.assign(modelled_s=math.nan), {"one_s": "one"}, "all", "h")
    assert (len(without), [name for name, _ in legend]) == (1, ["one"])


def test_points_are_at_the_host_bound_share_and_the_speedup() -> None:
    rows = pd.DataFrame({"workload": ["a", "b"], "data": ["mnist", "cifar10"], "host_frac": [0.1, 0.4],
                         "gain": [2.8, 2.6]})
    chart = gains("a title", rows, {"a": "#112233", "b": "#445566"})
    points = [mark for mark in chart.marks if isinstance(mark, Curve)]
    assert [(list(mark.x), list(mark.y), mark.color) for mark in points] == [
        ([0.1], [2.8], "#112233"), ([0.4], [2.6], "#445566")]
    assert points[1].texts == ["b, cifar10: × 2.60, host-bound share 40.0 %"]
    assert [(sample.label, sample.marker) for sample in chart.key if isinstance(sample, Curve)] == [
        ("mnist", points[0].marker), ("cifar10", points[1].marker)]
    assert points[0].marker != points[1].marker
    assert (chart.x.low, chart.x.high) == (0, pytest.approx(0.5))
    assert chart.y.low is not None
    assert chart.y.low < 2.6
