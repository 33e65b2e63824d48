"""Reading of the flight recorder: each collective once, with the time on the clock of the spans."""

import json
import time
from typing import Any

import pytest
from torch._C import _distributed_c10d

from charact.measure.script.ranks.collectives import FlightRecorder, enable_flight_recorder


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


def rows(note: dict[str, Any] | None) -> list[list[Any]]:
    return [] if note is None else note["rows"]


def test_a_collective_has_its_group_bytes_and_time(dump: list[dict[str, Any]]) -> None:
    before_ns = time.perf_counter_ns()
    dump += [entry(0), entry(1, process_group=["5", "mesh_dp"], output_sizes=[[100]]),
             entry(2, "nccl:_all_gather_base", duration_ms=1.5, input_dtypes=["Strange", "Long"]),
             entry(3, is_p2p=True, p2p_seq_id=7)]  # fmt: skip
    first, second, third, fourth = rows(FlightRecorder().note(1))
    assert before_ns - 1e6 <= first[0] <= time.perf_counter_ns() + 1e6
    assert first[1:] == ("default", 3, 1, "all_reduce", 3 * 4 * 4 + 2 * 8, None, "gloo")
    assert second[1:] == ("mesh_dp", 2, 2, "all_reduce", 800, None, "gloo")
    assert third[4:] == ("_all_gather_base", None, 1_500_000, "nccl")
    assert fourth[3] == 7


def test_each_collective_is_noted_once_and_lost_ones_are_counted(dump: list[dict[str, Any]]) -> None:
    recorder = FlightRecorder()
    assert recorder.note(0) is None
    dump += [entry(0), entry(1)]
    assert [row[3] for row in rows(recorder.note(1))] == [1, 2]
    assert recorder.note(1) is None
    dump[:] = [entry(4), entry(5)]
    note = recorder.note(2)
    assert note is not None
    assert (note["lost"], [row[3] for row in note["rows"]]) == (2, [5, 6])


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
