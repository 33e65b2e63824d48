"""Samples of counters: which are good, on whose clock, in which phase, and what they come to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charact.measure.counters.pm.sampling import (
    ACTIVE,
    WANTED,
    Sample,
    chosen_metrics,
    clock_of,
    good_samples,
    metrics_of,
    on_clock,
    sets_of,
    shares,
    totals,
)

NAMES = {name.partition(".")[0] for one in WANTED for name in metrics_of([one])}
CHOSEN, _ = chosen_metrics(NAMES, lambda metrics: True)
OCCUPANCY, PREDICATED, THROUGHPUT, BYTES = (
    next(one for one in CHOSEN if one.counter == counter)
    for counter in ("warp_occupancy_frac", "nonpredicated_efficiency_frac", "bandwidth_utilization_frac", "dram_bytes"))


def sample(start_ns: int, end_ns: int, active: float = 1.0, **metrics: float) -> Sample:
    named = {one.counter: one.metric for one in (OCCUPANCY, PREDICATED, THROUGHPUT, BYTES)}
    return Sample(start_ns, end_ns, {ACTIVE: active, **{named[name]: value for name, value in metrics.items()}})


def test_the_first_sample_and_those_of_impossible_times_are_dropped() -> None:
    good = [sample(10, 20), sample(20, 30), sample(40, 50)]
    assert good_samples([sample(0, 10), *good[:2], sample(25, 35), sample(99, 3), sample(40, 4000), good[2]]) == good
    assert good_samples([]) == []


def worked(*stretches: tuple[int, int], offset: int = 0) -> list[Sample]:
    """Samples of 100 ns each on a device's clock; it is at work in the stretches, by the host's."""
    return [sample(start_ns - offset, start_ns + 100 - offset,
                   float(any(begin < start_ns + 100 and end > start_ns for begin, end in stretches)))
            for start_ns in range(0, max(end for _, end in stretches) + 1000, 100)]


@given(st.integers(-10**15, 10**15), st.integers(0, 400), st.integers(0, 400), st.integers(1, 500))
def test_any_clock_is_laid_onto_the_hosts_within_its_error(offset: int, late: int, early: int, length: int) -> None:
    stretches = [(1000 + late, 1000 + late + length), (5000, 9000), (12_000, 12_000 + length)]
    bursts = [(1000, 1000 + late + length), (12_000, 12_000 + length + early)]
    samples = worked(*stretches, offset=offset)
    clock = clock_of(samples, bursts, 2000)
    assert abs(clock.offset_ns - offset) <= clock.error_ns
    assert clock.error_ns <= (late + early) / 2 + 200
    assert on_clock(samples, clock)[0].end_ns - on_clock(samples, clock)[0].start_ns == 100


def test_a_host_that_was_held_up_in_one_burst_is_set_right_by_the_others() -> None:
    stretches = [(30_000, 30_500), (40_000, 40_500), (60_000, 60_500), (70_000, 70_500)]
    held_up = [(22_000, 30_500), (40_000, 40_500), (60_000, 68_500), (70_000, 70_500)]
    assert clock_of(worked(*stretches), held_up, 4000).error_ns <= 100


@pytest.mark.parametrize(("stretches", "message"), [
    ([(500, 600)], "1 intervals of work"),
    ([(1000, 1100), (5000, 5100), (9000, 9100)], "work of another program"),
])
def test_samples_that_do_not_show_the_bursts_give_no_clock(stretches: list[tuple[int, int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        clock_of(worked(*stretches), [(1000, 1100), (5000, 5100)], 2000)


def test_a_sample_on_a_border_belongs_to_both_phases_by_its_time() -> None:
    spans = [(0, 25, "forward"), (30, 100, "backward")]
    assert shares([sample(0, 20), sample(20, 40), sample(110, 120)], spans) == [
        {"forward": 1.0}, {"forward": 0.25, "backward": 0.5}, {}]


def test_means_are_weighted_by_what_they_are_shares_of() -> None:
    samples = [
        sample(0, 10, 30.0, warp_occupancy_frac=20.0, bandwidth_utilization_frac=50.0, dram_bytes=100.0),
        sample(10, 20, 10.0, warp_occupancy_frac=100.0, bandwidth_utilization_frac=0.0, dram_bytes=200.0),
        sample(20, 30, 0.0, warp_occupancy_frac=float("nan"), bandwidth_utilization_frac=100.0, dram_bytes=7.0),
    ]
    found = totals(samples, [1.0, 1.0, 0.5], [OCCUPANCY, THROUGHPUT, BYTES], 2)
    assert found["warp_occupancy_frac"] == pytest.approx(0.4)
    assert found["bandwidth_utilization_frac"] == pytest.approx(0.4)
    assert found["dram_bytes"] == pytest.approx((100 + 200 + 3.5) / 2)
    assert totals(samples, [0.0, 0.0, 1.0], [OCCUPANCY], 2) == {}


def test_names_of_metrics_are_those_that_the_chip_has() -> None:
    old = {"sm__cycles_active", "sm__warps_active", "sm__inst_executed_pipe_tensor", "dram__bytes"}
    chosen, missing = chosen_metrics(old, lambda metrics: True)
    by_counter = {one.counter: one.metric.partition(".")[0] for one in chosen}
    assert by_counter == {
        "warp_occupancy_frac": "sm__warps_active", "bandwidth_utilization_frac": "dram__bytes",
        "dram_bytes": "dram__bytes", "tensor_pipe_frac": "sm__inst_executed_pipe_tensor"}
    assert set(missing) == {"nonpredicated_efficiency_frac"}
    assert "no metric" in missing["nonpredicated_efficiency_frac"]


def test_a_metric_that_takes_more_passes_makes_room_for_another() -> None:
    chosen, missing = chosen_metrics(NAMES, lambda metrics: not any("realtime" in name for name in metrics))
    assert [one.factor for one in chosen if one.counter == "nonpredicated_efficiency_frac"] == [1 / 100]
    assert missing == {}
    _, missing = chosen_metrics(NAMES, lambda metrics: not any("thread_inst" in name for name in metrics))
    assert set(missing) == {"nonpredicated_efficiency_frac"}
    assert "more than one pass" in missing["nonpredicated_efficiency_frac"]


def test_threads_of_an_instruction_are_a_share_of_32() -> None:
    one = Sample(0, 10, {ACTIVE: 1.0, PREDICATED.metric: 28.0, str(PREDICATED.weight): 5.0})
    assert totals([one], [1.0], [PREDICATED], 1) == {"nonpredicated_efficiency_frac": pytest.approx(0.875)}


@given(st.integers(3, 8))
def test_every_counter_is_in_one_set_that_fits(capacity: int) -> None:
    sets = sets_of(CHOSEN, lambda metrics: len(metrics) <= capacity)
    assert sorted(one.counter for held in sets for one in held) == sorted(one.counter for one in CHOSEN)
    assert all(len(metrics_of(held)) <= capacity and ACTIVE in metrics_of(held) for held in sets)
    assert len(sets) == 1 or capacity < len(metrics_of(CHOSEN))
