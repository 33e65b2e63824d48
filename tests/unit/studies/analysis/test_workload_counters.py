"""Counters of several workloads: each value divided by that of the first workload, or the reason why it is missing."""

from pathlib import Path

import pytest
from support.counter_records import write_gpu
from support.records import write_record

from charact.record.reader import Run, load_run
from charact.studies.analysis.workload_counters import COUNTERS, workload_counters


def renamed(run: Run, workload: str, factor: float) -> Run:
    """The run with another workload, and counters that are larger by a factor."""
    for case in run.manifest["cases"]:
        case["workload"] = workload
    run._tables["counters"] = run.counters.assign(value=run.counters["value"] * factor)
    return run


def test_counters_are_divided_by_those_of_the_first_workload(tmp_path: Path) -> None:
    first, second = load_run(write_gpu(tmp_path / "a")), renamed(load_run(write_gpu(tmp_path / "b")), "other", 0.25)
    rows = workload_counters([first, second])
    firsts = rows[rows["workload"] != "other"].dropna(subset=["normalized"])
    others = rows[rows["workload"] == "other"].set_index("counter")["normalized"].dropna()
    assert set(firsts["normalized"]) == {1.0}
    assert others.drop("flop_per_s", errors="ignore").tolist() == pytest.approx([0.25] * 4)


def test_a_cpu_has_the_rate_alone(tmp_path: Path) -> None:
    run = load_run(write_record(tmp_path, sizes=(32,), modes=("train",)))
    for entry in run.entries:
        assert entry.device == "cpu"
    rows = workload_counters([run])
    assert list(rows["counter"]) == list(COUNTERS)
    assert set(rows.loc[rows["counter"] != "flop_per_s", "reason"]) == {"a GPU's counter; this is a CPU"}
    assert rows.loc[rows["counter"] == "flop_per_s", "normalized"].tolist() == [1.0]


def test_a_run_without_cases_has_no_rows() -> None:
    assert workload_counters([]).empty
