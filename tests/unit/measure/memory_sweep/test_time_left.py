"""The time left in a memory sweep."""

import pytest
from support.notes import Notes
from support.small import small_case

from charact.execution.case import Case
from charact.measure.memory_sweep import sweep as time_left
from charact.measure.memory_sweep.sweep import TimeLeft


class Left(Notes):
    """Keeps the times left."""

    def time_left(self, seconds: float) -> None:
        self.told.append((seconds,))


def reported(monkeypatch: pytest.MonkeyPatch, cases: list[Case], durations_s: list[float]) -> list[float]:
    """The times left that are reported as cases take these times."""
    now_s = [100.0]
    monkeypatch.setattr(time_left.time, "monotonic", lambda: now_s[0])
    observer = Left()
    left = TimeLeft(cases, observer)
    for duration_s in durations_s:
        left.case_starts()
        now_s[0] += duration_s
    return [told[0] for told in observer.told]


def test_first_cases_of_a_family_count_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [small_case(mode, workload=small_case().workload, batch_size=batch_size)
             for batch_size in (8, 16, 32) for mode in ("train", "infer")]
    shared = cases[0].workload
    cases = [Case(shared, case.input_size, case.batch_size, case.mode, case.precision, case.device, case.data)
             for case in cases]
    assert reported(monkeypatch, cases, [20, 10, 1, 2, 1, 2]) == pytest.approx([100, 60, 3, 3, 4 / 3])


def test_other_models_take_as_long_as_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [small_case(), small_case("infer"), small_case("infer", batch_size=1)]
    assert reported(monkeypatch, cases, [20, 10, 1]) == [40, 15]


def test_one_case_has_no_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reported(monkeypatch, [small_case()], [20]) == []
