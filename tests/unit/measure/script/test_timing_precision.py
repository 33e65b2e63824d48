"""When a program's timing is precise enough for the passes to run."""

from collections.abc import Iterator

import pytest

from charact.measure.script import timing_precision
from charact.measure.script.timing_precision import TimingPrecision


@pytest.mark.parametrize(("times_s", "num_iterations"), [
    ([0.010], 14),  # 3 at the start, then 10 from end to end, whose first begins at the end of the 4th
    ([0.010, 0.030], 24),  # the median stays unknown: 20 at most
    ([0.010, 0.0101], 14),
    ([0.100, 0.300], 9),  # long iterations: there may be few
    ([0.010, 0.010, 0.010, 4.0], 4),
])
def test_it_is_enough_once_the_median_is_precise(
        monkeypatch: pytest.MonkeyPatch, times_s: list[float], num_iterations: int) -> None:
    def clock() -> Iterator[int]:
        now_ns = 0
        while True:
            for time_s in times_s:
                now_ns += round(1e9 * time_s)
                yield now_ns

    ticks = clock()
    monkeypatch.setattr(timing_precision, "perf_counter_ns", lambda: next(ticks))
    precision = TimingPrecision()
    assert not precision.is_enough(iteration_ended=False)
    seen = 1
    while not precision.is_enough(iteration_ended=True):
        seen += 1
    assert seen == num_iterations
    assert precision.is_enough(iteration_ended=False)


def test_ranks_time_the_same_number_of_iterations_however_long_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = 0

    def clock() -> int:
        nonlocal now_ns
        now_ns += 2_000_000_000
        return now_ns

    monkeypatch.setattr(timing_precision, "perf_counter_ns", clock)
    precision = TimingPrecision(in_step=True)
    assert [precision.is_enough(iteration_ended=True) for _ in range(24)] == [False] * 23 + [True]
