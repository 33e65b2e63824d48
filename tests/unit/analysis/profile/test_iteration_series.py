"""The series of iterations against times that were written, and its thinning against sums over all iterations."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import records
from support.watched_programs import watched_program

from charact.analysis.profile.case_summary import iteration_times
from charact.analysis.profile.iteration_series import iteration_series, memory_changes, memory_over_run, thinned
from charact.core.slow_iterations import slow_limit_s
from charact.record.reader import load_run
from charact.record.schema import PHASES


def test_a_workloads_series_has_the_wall_time_of_each_iteration(tmp_path: Path) -> None:
    run = load_run(records.write_record(tmp_path))
    series, walls = iteration_series(run), iteration_times(run)
    assert set(series["kind"]) == {"timed"}
    for case, rows in series.groupby("case"):
        expected = walls[walls["case"] == case].sort_values("iteration")
        assert rows["wall_s"].tolist() == pytest.approx(expected["wall_s"].tolist())
        assert rows["index"].tolist() == list(range(len(expected)))
        assert rows[list(PHASES)].sum(axis="columns").tolist() == pytest.approx(rows["wall_s"].tolist())


def test_the_cause_of_a_slow_iteration_is_the_phase_that_was_longer(tmp_path: Path) -> None:
    data = np.full(100, 0.002)
    data[40] = 0.05
    update = np.full(100, 0.001)
    update[70] = 0.09
    series = iteration_series(watched_program(tmp_path, {"data": data, "forward": 0.01, "update": update}))
    slow = series.dropna(subset=["slow_phase"]).set_index("index")
    assert slow["slow_phase"].to_dict() == {40: "data", 70: "update"}
    assert slow.loc[40, "extra_s"] == pytest.approx(0.048, rel=0.02)
    assert slow.loc[70, "extra_s"] == pytest.approx(0.089, rel=0.02)
    assert slow["wall_s"].min() > slow_limit_s(series.loc[series["kind"] == "timed", "wall_s"].tolist())


def test_a_slow_warm_up_is_in_the_series_but_no_slow_iteration(tmp_path: Path) -> None:
    forward = np.full(50, 0.01)
    forward[0] = 1.0
    series = iteration_series(watched_program(tmp_path, {"forward": forward}, num=50, num_warmup=3))
    assert series["kind"].tolist() == ["warm-up"] * 3 + ["timed"] * 47
    assert series["wall_s"].iloc[0] == pytest.approx(1.0, rel=0.02)
    assert series["slow_phase"].isna().all()


@settings(max_examples=40, deadline=None)
@given(num=st.integers(1, 300), most=st.integers(1, 50), warmup=st.integers(0, 5))
def test_thinning_keeps_the_sum_the_slowest_and_every_iteration(
        num: int, most: int, warmup: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    times = np.random.default_rng(num).uniform(0.01, 0.02, num)
    times[num // 2] = 1.0
    run = watched_program(tmp_path_factory.mktemp("r"), {"forward": times}, num=num, num_warmup=min(warmup, num - 1))
    series = iteration_series(run)
    rows = thinned(series, most)
    lengths = rows["last"] - rows["first"] + 1
    assert lengths.sum() == num
    assert len(rows) <= most + 1  # warm-up and timed iterations are never in one row
    assert (rows["wall_s"] * lengths).sum() == pytest.approx(series["wall_s"].sum())
    assert rows["slowest_s"].max() == series["wall_s"].max()
    assert rows["first"].tolist()[1:] == (rows["last"] + 1).tolist()[:-1]
    marked = series.dropna(subset=["slow_phase"])
    assert set(rows["slow_index"].dropna()) <= set(marked["index"])
    assert rows["slow_index"].notna().any() == bool(len(marked))


def test_memory_over_the_run_has_what_was_sampled(tmp_path: Path) -> None:
    sizes: list[float | None] = [1e9 + 1e6 * number for number in range(100)]
    sizes[7] = None
    run = watched_program(tmp_path, {"forward": 0.01}, columns={"rss_bytes": sizes})
    assert memory_over_run(run)["rss_bytes"].tolist() == [size for size in sizes if size is not None]
    changes = memory_changes(run)
    assert changes["memory"].tolist() == ["resident set"]
    assert changes.iloc[0, 1:].tolist() == [1e9, 1e9 + 99e6, 1e9 + 99e6]
