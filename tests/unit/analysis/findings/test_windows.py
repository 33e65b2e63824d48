"""Findings about long programs, from windows whose slow-downs and leaks are known."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.long_programs import NUM, PER_WINDOW, Values, correlated, long_program

from charact.analysis.findings import findings, program_time
from charact.analysis.findings._watched_case import watched_cases
from charact.analysis.findings.memory import memory_growth
from charact.analysis.findings.windows import late_slow_down
from charact.analysis.profile.window_series import thinned_windows, window_series
from charact.record.reader import Run


def leak(bytes_per_iteration: float, start: float = 0.0) -> Values:
    """Resident set of a program that leaks from a share of its windows on."""
    windows = np.arange(NUM)
    return 2e9 + bytes_per_iteration * PER_WINDOW * np.maximum(windows - start * NUM, 0) + 1e6 * correlated(5)


def found(run: Run) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = findings(run).to_dict("records")
    return rows


@pytest.mark.parametrize("sets_in", [0.5, 0.7, 0.9])
def test_a_late_slow_down_of_10_percent_is_reported_with_its_time(tmp_path: Path, sets_in: float) -> None:
    first = int(sets_in * NUM)
    (slow,) = found(long_program(tmp_path, np.where(np.arange(NUM) < first, 0.004, 0.005)))
    assert (slow["finding"], slow["phase"]) == ("late_slow_down", "backward")
    (at_s,) = re.findall(r"^after ([\d,]+) s and", slow["evidence"][0])
    assert float(at_s.replace(",", "")) == pytest.approx(5 * first, rel=0.02)
    share = float(slow["cause"].split("slower by ")[1].split(" %")[0])
    assert share == pytest.approx(10, abs=1.5)
    position = int(slow["cause"].split("after ")[1].split(" iterations")[0].replace(",", ""))
    assert position == pytest.approx(first * PER_WINDOW, rel=0.02)
    extra_s = 0.001 * (NUM - first) * PER_WINDOW
    assert slow["recoverable_s"][0] < extra_s < 1.2 * slow["recoverable_s"][1]


@pytest.mark.parametrize("start", [0.0, 0.5])
def test_a_leak_of_1_mb_per_1000_iterations_is_reported_with_its_rate(tmp_path: Path, start: float) -> None:
    (grown,) = found(long_program(tmp_path, rss_bytes=leak(1000, start)))
    assert grown["finding"] == "memory_growth"
    assert "grows by 1,0" in grown["cause"] or "grows by 9" in grown["cause"]  # some 1000 B an iteration
    assert "per 1,000 iterations" in grown["evidence"][0]
    assert ("iteration 100,000 on" in grown["evidence"][0]) == (start > 0)
    assert grown["recoverable_bytes"] == pytest.approx(1000 * PER_WINDOW * NUM * (1 - start), rel=0.05)


@pytest.mark.parametrize("seed", range(20))
def test_a_clean_run_has_no_findings(tmp_path: Path, seed: int) -> None:
    assert found(long_program(tmp_path, seed=seed, rss_bytes=2e9 + 5e6 * correlated(100 + seed))) == []


def test_a_slow_time_that_ends_is_none(tmp_path: Path) -> None:
    windows = np.arange(NUM)
    assert found(long_program(tmp_path, np.where((windows > 200) & (windows < 300), 0.005, 0.004))) == []


def test_memory_that_fills_up_early_is_none(tmp_path: Path) -> None:
    filled = 2e9 + 5e8 * np.minimum(np.arange(NUM) / 60, 1.0) + 1e5 * correlated(7)
    assert found(long_program(tmp_path, rss_bytes=filled)) == []


def test_the_windows_count_in_the_programs_time(tmp_path: Path) -> None:
    run = long_program(tmp_path)
    times = program_time(run).set_index("part")["time_s"]
    assert times["training"] == pytest.approx(NUM * PER_WINDOW * 0.01, rel=0.02)
    (case,) = watched_cases(run)
    assert case.num_iterations == NUM * PER_WINDOW + 100
    assert [*late_slow_down(case), *memory_growth(case)] == []


def test_a_killed_program_took_as_long_as_all_its_iterations(tmp_path: Path) -> None:
    run = long_program(tmp_path)
    for case in run.manifest["cases"]:
        case["passes"]["timing"]["program"] = {}
    (case,) = watched_cases(run)
    assert case.program_s == pytest.approx((NUM * PER_WINDOW + 100) * 0.01, rel=0.01)


def test_thinned_windows_keep_numbers_and_means(tmp_path: Path) -> None:
    series = window_series(long_program(tmp_path, np.linspace(0.004, 0.008, NUM)))
    assert len(series) == NUM
    phases = series[["data", "forward", "backward"]].sum(axis="columns")
    assert np.allclose(phases, series["mean_s"])
    rows = thinned_windows(series, 30)
    assert len(rows) <= 30
    assert rows["num_iterations"].sum() == series["num_iterations"].sum()
    weighted = (rows["mean_s"] * rows["num_iterations"]).sum() / rows["num_iterations"].sum()
    assert weighted == pytest.approx(series["mean_s"].mean())
    assert list(rows["end_s"].iloc[:-1]) == list(rows["start_s"].iloc[1:])
    assert pd.isna(rows["allocated_bytes"]).all()
