"""The timing pass against known sleeps, and its stop rule against made-up times."""

from collections import defaultdict
from contextlib import nullcontext
from statistics import median

import pytest
from support.sleeper import SLEEPS_S, Sleeper, slept
from support.small import small_case

from charact.core.timeline import iteration_rows
from charact.execution.loop import Loop
from charact.measure.passes import timing
from charact.measure.passes.phase_timer import HostPhases
from charact.measure.passes.timing import StopRule, timing_pass

pytestmark = pytest.mark.clock


def ignore(*_: object) -> None:
    pass


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_every_phase_is_within_two_percent_or_a_millisecond_of_the_truth(mode: str) -> None:
    loop = Loop(small_case(mode, workload=Sleeper(), batch_size=1))
    with slept() as sleeps:
        rows = timing_pass(loop, StopRule(max_iterations=9, precision_target_frac=0.0), ignore).rows
    seconds = defaultdict(list)
    for row in rows:
        seconds[row["phase"]].append(row["host_s"])
    assert set(seconds) == {*(SLEEPS_S if mode == "train" else ("data", "forward")), "other"}
    for phase in set(seconds) - {"other"}:
        truth = sleeps[phase][-9:]  # the iterations before are for warming up
        assert all(told >= true for told, true in zip(seconds[phase], truth, strict=True)), phase
        least_s = min(told - max(0.02 * true, 0.001) - true for told, true in zip(seconds[phase], truth, strict=True))
        assert least_s <= 0, phase  # others may take the core in any iteration, but not in each
    assert median(seconds["other"]) < 0.001


def test_phases_and_other_are_the_wall_time_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100, 110, 117, 130, 171, 180])  # begin, data, forward, end
    phases = HostPhases()
    monkeypatch.setattr("charact.measure.passes.phase_timer.perf_counter_ns", lambda: next(clock))
    with phases:
        with phases("data"):
            pass
        with phases("forward"):
            pass
    (iteration,) = phases.take()
    assert {row["phase"]: row["host_s"] for row in iteration_rows([iteration])} == {
        "data": 7e-9, "forward": 41e-9, "other": 32e-9}
    assert iteration.wall_s == 80e-9
    assert phases.take() == []


def test_a_phase_entered_twice_is_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0, 1, 3, 5, 9, 10])
    phases = HostPhases()
    monkeypatch.setattr("charact.measure.passes.phase_timer.perf_counter_ns", lambda: next(clock))
    with phases:
        for _ in range(2):
            with phases("forward"):
                pass
    assert {row["phase"]: (row["host_s"], row["device_s"]) for row in iteration_rows(phases.take())} == {
        "forward": (6e-9, None), "other": (4e-9, None)}


def test_an_iteration_that_fails_is_not_recorded() -> None:
    phases = HostPhases()

    def failing_iteration() -> None:
        with phases, phases("data"):
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        failing_iteration()
    assert phases.take() == []


class TestStopRule:
    RULE = StopRule(precision_target_frac=0.02, max_iterations=10, max_seconds=5.0)

    def test_six_alike_iterations_meet_the_precision(self) -> None:
        assert timing.ended_by([1.0, 1.0, 1.01, 1.0, 0.99], 5, self.RULE, 0.0) is None
        assert timing.ended_by([1.0, 1.0, 1.01, 1.0, 0.99, 1.0], 6, self.RULE, 0.0) == "precision"

    def test_a_wide_interval_goes_on_to_a_limit(self) -> None:
        scattered = [1.0, 1.5] * 4
        assert timing.ended_by(scattered, 8, self.RULE, 1.0) is None
        assert timing.ended_by(scattered, 8, self.RULE, 6.0) == "max_seconds"
        assert timing.ended_by(scattered, 10, self.RULE, 1.0) == "max_iterations"

    def test_time_never_ends_it_before_an_interval_is_there(self) -> None:
        assert timing.ended_by([1.0] * 5, 5, self.RULE, 1e9) is None


@pytest.mark.parametrize(("limit", "ended_by"), [(3, "max_iterations"), (40, None)])
def test_what_ended_the_pass_is_recorded(limit: int, ended_by: str | None) -> None:
    seen: list[int] = []
    result = timing_pass(Loop(small_case()), StopRule(max_iterations=limit, max_seconds=0.2),
                         lambda count, _: seen.append(count))
    facts = result.facts
    assert facts.num_iterations == len(result.wall_s) == seen[-1] <= limit
    assert ended_by is None or facts.ended_by == ended_by
    assert facts.warmup_ended_by in ("stable", "max_iterations", "max_seconds")
    assert (facts.interval_frac is None) == (len(result.wall_s) < 6)
    walls = defaultdict(float)
    for row in result.rows:
        walls[row["iteration"]] += row["host_s"]
        assert row["host_s"] >= 0
        assert row["device_s"] is None
    assert [walls[i] for i in range(len(result.wall_s))] == pytest.approx(result.wall_s)


def test_the_same_seed_gives_the_same_weights_and_data() -> None:
    losses = []
    for _ in range(2):
        loop = Loop(small_case())
        for _ in range(3):
            loop.iteration(lambda _: nullcontext())
        batch = loop.next_batch()
        losses.append(loop.workload.loss(loop.workload.forward(loop.model, batch), batch).item())
    assert losses[0] == losses[1]


def test_epochs_follow_one_another_without_end() -> None:
    loop = Loop(small_case(batch_size=100))  # 256 samples: two batches an epoch
    assert [len(loop.next_batch()[0]) for _ in range(7)] == [100] * 7


def test_a_phase_inside_of_another_is_refused_as_its_time_would_count_twice() -> None:
    phases = HostPhases()
    with phases, phases("forward"), phases("loss"):
        pass
    with pytest.raises(AssertionError, match="overlap"):
        phases.take()
