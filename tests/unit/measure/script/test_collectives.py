"""The phase of each collective and the time that a rank waits for it, from known times."""

from dataclasses import replace

import pytest

from charact.core.timeline import Interval, Iteration
from charact.measure.script.ranks.collectives import Arrival, Arrivals, collective_rows, with_waiting
from charact.measure.script.spans.iterations import iteration_of
from charact.measure.script.spans.recorder import Kind, Slice


def arrival(time_ns: int, sequence: int = 0, *, backend: str = "gloo", operation: str = "all_reduce") -> Arrival:
    return Arrival(time_ns, "default", 2, sequence, operation, 400, None, backend)


def iteration(*intervals: Interval, end_ns: int = 100) -> Iteration:
    return Iteration(0, end_ns, list(intervals))


def parts(one: Iteration) -> list[tuple[str, int, int]]:
    return [(part.phase, part.start_ns, part.end_ns) for part in one.intervals]


DDP = iteration(Interval("forward", 0, 20, 1), Interval("backward", 30, 90, 1), Interval("update", 90, 100, 1))


def test_a_backward_ends_where_its_last_bucket_is_exchanged() -> None:
    waited = with_waiting(DDP, Arrivals([arrival(35, 1), arrival(50, 2), arrival(95, 3)]))
    assert parts(waited) == [("forward", 0, 20), ("backward", 30, 50), ("communication", 50, 90), ("update", 90, 100)]
    first, second, third = collective_rows(4, waited, Arrivals([arrival(35, 1), arrival(50, 2), arrival(95, 3)]))
    assert (first["phase"], first["exposed_s"], first["wait_s"]) == ("backward", 0, None)
    assert (second["phase"], second["exposed_s"], second["wait_s"]) == ("backward", 40e-9, 40e-9)
    assert (third["phase"], third["iteration"], third["sequence"], third["start_s"]) == ("update", 4, 3, 95e-9)


def test_each_of_two_backwards_is_cut() -> None:
    twice = iteration(Interval("backward", 0, 40, 1), Interval("loss", 40, 50, 1), Interval("backward", 50, 90, 1))
    waited = with_waiting(twice, Arrivals([arrival(10), arrival(60)]))
    assert parts(waited) == [("backward", 0, 10), ("communication", 10, 40), ("loss", 40, 50), ("backward", 50, 60),
                             ("communication", 60, 90)]


@pytest.mark.parametrize("arrivals", [
    [], [arrival(35, backend="nccl")],  # a GPU waits, not the host
    [arrival(25)],  # outside of the backward
])  # fmt: skip
def test_a_backward_without_an_exchange_that_the_host_waits_for_stays_whole(arrivals: list[Arrival]) -> None:
    assert with_waiting(DDP, Arrivals(arrivals)) == DDP


def test_device_times_of_a_program_on_an_accelerator_stay() -> None:
    on_device = replace(DDP, start_device_ns=0, end_device_ns=100)
    assert with_waiting(on_device, Arrivals([arrival(35), arrival(50)])) == on_device


def test_a_wait_inside_a_phase_is_that_phases() -> None:
    slices = [
        Slice(Kind.FORWARD, 0, 10, 1), Slice(Kind.COMMUNICATION, 10, 30, 0, ends=True),
        Slice(Kind.FORWARD, 30, 40, 1, ends=True, begins=False), Slice(Kind.COMMUNICATION, 50, 60, 0, ends=True),
        Slice(Kind.BACKWARD, 60, 80, 1, ends=True), Slice(Kind.STEP, 80, 90, 1, ends=True),
    ]
    one = iteration_of(slices, None, training=True)
    called = Arrivals([arrival(11, 1), arrival(12, 2), arrival(51, 3)])
    rows = collective_rows(0, one, called)
    assert [row["phase"] for row in rows] == ["forward", "forward", "communication"]
    # Of two calls that are waited for together, each has the time until the next; together they have all of it.
    assert [row["exposed_s"] for row in rows] == [2e-9, 18e-9, 10e-9]
    assert [row["wait_s"] for row in rows] == [None, 18e-9, 9e-9]


def test_a_later_wait_belongs_to_the_latest_call() -> None:
    one = iteration(Interval("communication", 10, 11, 0), Interval("forward", 11, 40, 1),
                    Interval("communication", 40, 70, 0))
    (row,) = collective_rows(0, one, Arrivals([arrival(10)]))
    assert (row["exposed_s"], row["wait_s"]) == (31e-9, 60e-9)
