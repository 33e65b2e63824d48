"""The section Iterations: what its charts draw, against the times that were written."""

from pathlib import Path

import numpy as np
import pytest
from support.watched_programs import watched_program

from charact.analysis.profile.iteration_series import distribution, iteration_series, thinned
from charact.views.charts import Area, Curve, Span
from charact.views.figures import iterations as figures
from charact.views.sections.profile.iterations import SECTION
from charact.views.tables import palette


def test_the_stack_ends_at_the_iterations_time_and_triangles_have_the_cause(tmp_path: Path) -> None:
    data = np.full(60, 0.002)
    data[30] = 0.5
    run = watched_program(tmp_path, {"data": data, "forward": 0.01}, num=60)
    rows = thinned(iteration_series(run), 60)
    chart = figures.series("t", rows)
    highest = next(mark for mark in chart.marks if isinstance(mark, Area))  # drawn first, behind the others
    end = chart.y.high
    assert end is not None
    assert end < 0.5  # the slow iteration is beyond the axis
    heights = list(highest.high)
    assert heights[:-1] == pytest.approx([min(wall, end) for wall in rows["wall_s"]])
    triangle, = (mark for mark in chart.marks if isinstance(mark, Curve))
    assert (triangle.color, triangle.marker, list(triangle.x)) == (palette.PHASES["data"], "^", [30.5])
    assert triangle.texts[0].startswith("iteration 30: 5")
    assert "data" in triangle.texts[0]
    warm_up = [mark for mark in chart.marks if isinstance(mark, Span) and mark.opacity]
    assert [(band.low, band.high) for band in warm_up] == [(0, 3)]


@pytest.mark.parametrize("num", [20, 1000])
def test_the_distribution_is_the_share_of_iterations_up_to_a_time(num: int, tmp_path: Path) -> None:
    walls = iteration_series(watched_program(tmp_path, {"forward": 0.01}, num=num, num_warmup=0))["wall_s"]
    chart = figures.distribution("t", distribution(walls, figures.NUM_COLUMNS), {"median": walls.median()})
    curve = next(mark for mark in chart.marks if isinstance(mark, Curve))
    for time_s, share in zip(curve.x, curve.y, strict=True):
        assert share == pytest.approx((walls <= time_s).mean())
    assert max(curve.y) == 1


def test_two_iterations_have_no_figures_and_equal_ones_have(tmp_path: Path) -> None:
    assert not SECTION.belongs_to(watched_program(tmp_path / "two", {"forward": 0.01}, num=5, num_warmup=3))
    walls = iteration_series(watched_program(tmp_path / "equal", {"forward": 0.01}, num=9))["wall_s"] * 0 + 0.01
    axis = figures.distribution("t", distribution(walls, 160), {"median": 0.01}).x
    assert axis.low is not None
    assert axis.high is not None
    assert axis.low < 0.01 < axis.high
