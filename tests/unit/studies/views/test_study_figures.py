"""Charts of the studies: a point for each training, at its host-bound share and published speedup."""

import pandas as pd
import pytest

from charact.studies.views.figures import gains
from charact.views.charts import Curve


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
