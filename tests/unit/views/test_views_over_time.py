"""The section Over time: what windows of time hold of a long program."""

from pathlib import Path

import numpy as np
import pytest
from support.long_programs import NUM, PER_WINDOW, long_program

from charact.analysis.profile.window_series import thinned_windows, window_series
from charact.record.reader import Run
from charact.views.charts import Area, Curve
from charact.views.figures.windows import NUM_COLUMNS, times
from charact.views.kinds.profile import _in_all
from charact.views.sections.script.over_time import SECTION


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return long_program(tmp_path, np.linspace(0.004, 0.008, NUM))


def test_the_section_has_the_time_by_phase_and_the_memory(run: Run) -> None:
    assert SECTION.belongs_to(run)
    (block,) = SECTION.html(run).blocks
    assert [chart.title.partition(" of ")[0] for chart in block.figures] == ["Time", "Memory"]
    assert block.table is not None
    assert len(block.table.rows) == 40
    assert [name for name, _ in block.legend] == ["data", "forward", "backward"]


def test_the_chart_stacks_the_phases_to_the_mean(run: Run) -> None:
    rows = thinned_windows(window_series(run), NUM_COLUMNS)
    chart = times("Time", rows)
    tops = [mark.high for mark in chart.marks if isinstance(mark, Area)]
    assert list(tops[0])[:-1] == pytest.approx(list(rows["mean_s"]))
    median, p90 = (mark for mark in chart.marks if isinstance(mark, Curve))
    assert list(median.y) == list(rows["median_s"])
    assert list(p90.y) == list(rows["p90_s"])


def test_a_slow_window_does_not_hide_the_others(run: Run) -> None:
    rows = thinned_windows(window_series(run), NUM_COLUMNS)
    rows.loc[0, ["mean_s", "median_s", "p90_s", "backward"]] += 10.0
    chart = times("Time", rows)
    assert chart.y.high == pytest.approx(2.5 * rows["mean_s"].median())
    assert all(max(mark.high) <= chart.y.high for mark in chart.marks if isinstance(mark, Area))


def test_a_program_of_few_iterations_has_no_section(run: Run) -> None:
    short = Run(run.path, run.manifest, _tables={"windows": run.windows.iloc[:0]})
    assert not SECTION.belongs_to(short)
    assert SECTION.html(short).blocks == []


def test_the_summary_has_the_number_of_all_iterations(run: Run) -> None:
    from charact.analysis.common.script_attribution import attribution

    (row,) = attribution(run).itertuples()
    (text,) = _in_all(row)
    assert text.startswith(f"{NUM * PER_WINDOW + 98:,} iterations in all")  # 97 timed, and 1 left out
