"""The time left in a memory sweep."""

import pytest
from support.notes import Notes
from support.small import small_case

from charact.execution.case import Case
from charact.measure.memory_sweep import time_left
from charact.measure.memory_sweep.time_left import TimeLeft


class Left(Notes):
    """Keeps the times left."""

    def time_left(self, seconds: float, is_bound: bool) -> None:
        self.told.append((seconds, is_bound))


def reported(monkeypatch: pytest.MonkeyPatch, cases: list[Case], durations_s: list[float], *, measures: bool = False
             ) -> list[tuple[float, bool]]:
    """The times left that are reported as cases take these times."""
    now_s = [100.0]
    monkeypatch.setattr(time_left.time, "monotonic", lambda: now_s[0])
    observer = Left()
    left = TimeLeft(cases, observer, measures=measures)
    for duration_s in durations_s:
        left.case_starts()
        now_s[0] += duration_s
    return [(told[0], told[1]) for told in observer.told]


def test_first_cases_of_a_family_count_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [small_case(mode, workload=small_case().workload, batch_size=batch_size)
             for batch_size in (8, 16, 32) for mode in ("train", "infer")]
    shared = cases[0].workload
    cases = [Case(shared, case.input_size, case.batch_size, case.mode, case.precision, case.device, case.data)
             for case in cases]
    assert reported(monkeypatch, cases, [20, 10, 1, 2, 1, 2]) == [
        (100, True), (60, True), (3, False), (3, False), (pytest.approx(4 / 3), False)]


def test_cases_that_also_run_have_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = small_case().workload
    cases = [Case(shared, 512, batch_size, "train", "fp32", small_case().device, small_case().data)
             for batch_size in (8, 16, 32)]
    assert reported(monkeypatch, cases, [20, 4, 4], measures=True) == [(40, False), (4, False)]


def test_workloads_of_which_each_is_calibrated_take_as_long_as_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [small_case(), small_case("infer"), small_case("infer", batch_size=1)]
    assert reported(monkeypatch, cases, [20, 10, 1]) == [(40, False), (15, False)]


def test_one_case_has_no_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reported(monkeypatch, [small_case()], [20]) == []
