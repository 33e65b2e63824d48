"""When the passes of a profiled program begin."""

from pathlib import Path

import pytest

from charact.measure.script import pass_scheduler
from charact.measure.script.pass_scheduler import PassScheduler
from charact.measure.script.spans.recorder import SpanRecorder


@pytest.mark.parametrize(("times_s", "in_step", "num_iterations"), [
    ([0.010], False, 13),
    ([0.010, 0.030], False, 13),
    ([0.100, 0.300], False, 9),  # long iterations: there may be few
    ([0.010, 0.010, 0.010, 4.0], False, 4),
    ([4.0], True, 13),  # ranks decide alike
])
def test_passes_begin_after_many_or_long_iterations(monkeypatch: pytest.MonkeyPatch, times_s: list[float],
                                                    in_step: bool, num_iterations: int) -> None:
    now_ns = 0

    def clock() -> int:
        nonlocal now_ns
        now_ns += round(1e9 * times_s[seen % len(times_s)])
        return now_ns

    monkeypatch.setattr(pass_scheduler, "perf_counter_ns", clock)
    scheduler = PassScheduler([], Path(), SpanRecorder(), {}, dict, lambda _: None, in_step=in_step)
    assert not scheduler.are_due(iteration_ended=False)
    seen = 0
    while not scheduler.are_due(iteration_ended=True):
        seen += 1
    assert seen + 1 == num_iterations
    assert scheduler.are_due(iteration_ended=False)
