"""Collectives of a rank: each is read once, has a phase, and the time that the rank waits for it."""

import json
import time
from dataclasses import replace
from typing import Any

import pytest
from torch._C import _distributed_c10d

from charact.core.timeline import Interval, Iteration
from charact.measure.script.ranks.collectives import (
    Arrival,
    Arrivals,
    FlightRecorder,
    collective_rows,
    enable_flight_recorder,
    with_waiting,
)
from charact.measure.script.spans.iterations import iteration_of
from charact.measure.script.spans.recorder import Kind, Slice


def entry(number: int, name: str = "gloo:all_reduce", **changes: Any) -> dict[str, Any]:
    return {"record_id": number, "profiling_name": name, "time_created_ns": time.time_ns(),
            "process_group": ["0", "default_pg"], "collective_seq_id": number + 1, "is_p2p": False,
            "input_sizes": [[3, 4], [2]], "input_dtypes": ["Float", "Long"], "output_sizes": [[5]],
            "output_dtypes": ["Double"], **changes}  # fmt: skip


@pytest.fixture
def dump(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Entries that the flight recorder holds."""
    entries: list[dict[str, Any]] = []
    groups = {"": {"ranks": "[0, 1, 2]"}, "5": {"ranks": "[0, 2]"}}
    monkeypatch.setattr(_distributed_c10d, "_dump_fr_trace_json",
                        lambda *_: json.dumps({"entries": entries, "pg_config": groups}).encode())
    return entries


def rows(note: dict[str, Any] | None) -> list[Arrival]:
    return [] if note is None else note["rows"]


def test_a_collective_has_its_group_bytes_and_time(dump: list[dict[str, Any]]) -> None:
    before_ns = time.perf_counter_ns()
    dump += [entry(0), entry(1, process_group=["5", "mesh_dp"], output_sizes=[[100]]),
             entry(2, "nccl:_all_gather_base", duration_ms=1.5, input_dtypes=["Strange", "Long"]),
             entry(3, is_p2p=True, p2p_seq_id=7)]  # fmt: skip
    first, second, third, fourth = rows(FlightRecorder().note(1))
    assert before_ns - 1e6 <= first.time_ns <= time.perf_counter_ns() + 1e6
    assert first[1:] == ("default", 3, 1, "all_reduce", 3 * 4 * 4 + 2 * 8, None, "gloo")
    assert second[1:] == ("mesh_dp", 2, 2, "all_reduce", 800, None, "gloo")
    assert third[4:] == ("_all_gather_base", None, 1_500_000, "nccl")
    assert fourth.sequence == 7


def test_the_first_that_has_not_ended_is_named(dump: list[dict[str, Any]]) -> None:
    recorder = FlightRecorder()
    dump += [entry(0, retired=True), entry(2, retired=False), entry(1, retired=False)]
    assert recorder.unfinished() == "all_reduce 2 of group default"
    dump.clear()
    assert recorder.unfinished() is None


def test_each_collective_is_noted_once_and_lost_ones_are_counted(dump: list[dict[str, Any]]) -> None:
    recorder = FlightRecorder()
    assert recorder.note(0) is None
    dump += [entry(0), entry(1)]
    assert [row.sequence for row in rows(recorder.note(1))] == [1, 2]
    assert recorder.note(1) is None
    dump[:] = [entry(4), entry(5)]
    note = recorder.note(2)
    assert note is not None
    assert (note["lost"], [row.sequence for row in note["rows"]]) == (2, [5, 6])


def test_it_is_read_before_it_can_overwrite_anything(dump: list[dict[str, Any]],
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "90")
    recorder = FlightRecorder()
    dump += [entry(number) for number in range(40)]
    assert len(rows(recorder.note_if_due(1))) == 40  # those of the start
    dump += [entry(number) for number in range(40, 50)]
    assert len(rows(recorder.note_if_due(2))) == 10  # the second read shows how many an iteration has
    dump += [entry(number) for number in range(50, 70)]
    assert recorder.note_if_due(3) is None
    assert recorder.note_if_due(4) is None
    assert len(rows(recorder.note_if_due(5))) == 20  # three iterations may have had 30, a third of what it holds


def test_why_there_are_none(dump: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = FlightRecorder()
    recorder.note(1)
    assert recorder.problem == "the flight recorder of this PyTorch recorded none of this rank"
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "0")
    assert recorder.problem == "the flight recorder is off: remove TORCH_FR_BUFFER_SIZE=0"
    monkeypatch.delattr(_distributed_c10d, "_dump_fr_trace_json")
    recorder.note(1)
    assert "PyTorch 2.9 and newer have one" in str(recorder.problem)


def test_the_programs_choice_of_a_size_has_precedence() -> None:
    environment = {"TORCH_FR_BUFFER_SIZE": "7"}
    enable_flight_recorder(environment)
    assert environment == {"TORCH_FR_BUFFER_SIZE": "7"}


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
