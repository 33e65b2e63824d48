"""Speedups as the literature prints them, and their geometric means."""

import math
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.compared import PUBLISHED, record, side
from support.records import case_entry

from charact.analysis.compare import Group, geometric_means, ratios, speedups
from charact.core.errors import UserError
from charact.record.reader import Run


def test_the_published_table_comes_out(published: list[Group]) -> None:
    table = speedups(published).pivot(index="workload", columns="data", values="speedup").round(4)
    assert table.loc["googlenet", ["cifar10", "mnist", "kmnist"]].to_list() == [2.7811, 2.8301, 2.8246]
    assert table.loc["resnet18", ["cifar10", "mnist", "kmnist"]].to_list() == [2.6290, 2.8175, 2.8684]


def test_the_published_means_come_out(published: list[Group]) -> None:
    by_workload = geometric_means(published, "workload").set_index("workload")
    assert by_workload["speedup"].round(4).to_dict() == {"googlenet": 2.8118, "resnet18": 2.7697}
    everything = geometric_means(published).iloc[0]
    assert round(everything["speedup"], 4) == 2.7907
    assert everything["num_cases"] == 6
    assert everything["low"] < 2.7907 < everything["high"]


def test_the_mean_of_one_case_is_its_speedup(base_and_new: list[Group]) -> None:
    mean, case = geometric_means(base_and_new).iloc[0], speedups(base_and_new).iloc[0]
    assert mean["num_cases"] == 1
    assert mean[["speedup", "low", "high"]].to_list() == case[["speedup", "low", "high"]].to_list()
    ratio = ratios(base_and_new, "case").iloc[0]
    assert case["speedup"] == pytest.approx(1 / ratio["ratio"])
    assert case["low"] == pytest.approx(1 / ratio["high"])


def test_the_interval_is_students_of_the_logarithms(published: list[Group]) -> None:
    logs = [math.log(value) for value in (2.781103, 2.830069, 2.824629)]
    spread = math.sqrt(sum((log - sum(logs) / 3) ** 2 for log in logs) / 2)
    found = geometric_means(published, "workload").set_index("workload").loc["googlenet"]
    assert math.log(found["high"] / found["speedup"]) == pytest.approx(4.3027 * spread / math.sqrt(3), rel=1e-3)


def test_a_case_without_times_counts_for_nothing(tmp_path: Path) -> None:
    run = record(tmp_path, case_entry("vgg16", 32, "train"))
    mean = geometric_means([side("one", run), side("other", run)]).iloc[0]
    assert mean["num_cases"] == 0
    assert pd.isna(mean["speedup"])
    assert mean["reason"] == "no case has a speedup"


def test_an_unknown_group_is_refused(published: list[Group]) -> None:
    with pytest.raises(UserError, match="cannot group by 'machine': choose from workload,"):
        geometric_means(published, "machine")


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(6)))
def test_the_order_of_cases_changes_nothing(published: list[Group], order: list[int]) -> None:
    run = published[1].runs[0]
    shuffled = run.manifest | {"cases": [run.manifest["cases"][number] for number in order]}
    again = [published[0], side(PUBLISHED[1], Run(run.path, shuffled, _tables=run._tables))]
    pd.testing.assert_frame_equal(speedups(again), speedups(published))
    pd.testing.assert_frame_equal(geometric_means(again[::-1]).drop(columns="side"),
                                  geometric_means(published[::-1]).drop(columns="side"))  # fmt: skip
