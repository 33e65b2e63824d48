"""Events of a watched program on CUDA, with a stand-in for `torch.cuda` that refuses what a real device refuses."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.watched import cases, training, watched

from charact.core.errors import UserError
from charact.measure.script.program_state import compute_device
from charact.measure.script.session import Plan, Session
from charact.measure.script.spans.device_clock import program_device
from charact.measure.script.spans.event_log_reader import EventLogReader
from charact.measure.script.spans.recorder import Kind
from charact.record.manifest import CaseEntry
from charact.record.schema import Rows


class Device:
    """A device that passes an event at once, and fails if one is touched while a graph is captured."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.capturing = False
        self.now_ms = 0.0
        self.num_events = 0
        self.streams: set[object] = set()
        self.held_bytes = [1]
        """Bytes of tensors on each device."""
        device = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing
                device.num_events += 1
                self.at_ms = -1.0

            def record(self, stream: object = None) -> None:
                device.must_not_capture()
                device.streams.add(stream)
                device.now_ms += 1.0
                self.at_ms = device.now_ms

            def query(self) -> bool:
                device.must_not_capture()
                return True

            def synchronize(self) -> None:
                device.must_not_capture()

            def elapsed_time(self, other: "Event") -> float:
                device.must_not_capture()
                return other.at_ms - self.at_ms

        self.event_class = Event
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(self.held_bytes))
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda index: self.held_bytes[index])
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: f"stream of {device}")
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: f"GPU {device}")
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capturing)

    def must_not_capture(self) -> None:
        assert not self.capturing, "operation not permitted when stream is capturing"


@pytest.mark.parametrize(("ends_inside", "captured"), [
    (False, [False, True, True, False]), (True, [False, True, True, False]), (False, [True, True])])
def test_no_event_is_touched_while_a_graph_is_captured(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_inside: bool, captured: list[bool]) -> None:
    device = Device(monkeypatch)
    device.capturing = captured[0]
    monkeypatch.setattr("charact.measure.script.session.FLUSH_S", 0)  # after every span
    session = Session(tmp_path, Plan(iterations=1, skip=1) if ends_inside else Plan())
    session.start()
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for device.capturing in captured:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    device.capturing = False
    session.close("to its end")
    assert session.problem is None
    forwards = [each for each in EventLogReader(tmp_path).slices() if each.kind is Kind.FORWARD]
    timed = [each.start_event is not None and each.end_event is not None for each in forwards]
    assert timed == [not each for each in captured][:3 if ends_inside else None]
    times = [each.end_event - each.start_event for each in forwards if each.end_event is not None]
    assert times == [1_000_000] * len(times)


def trained(directory: Path, num_iterations: int = 6) -> tuple[CaseEntry, Rows]:
    """The case of a program that trains."""
    ((entry, tables),) = cases(watched(directory, training(num_iterations)))
    return entry, tables["iterations"]


def test_times_are_those_of_the_device_that_holds_the_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    device.held_bytes = [0, 4096]
    case, rows = trained(tmp_path)
    assert device.streams == {"stream of cuda:1"}
    assert (case.device, case.device_name) == ("cuda:1", "GPU cuda:1")
    assert all(row["device_s"] is not None for row in rows)
    assert compute_device() == torch.device("cuda", 1)


def test_events_are_dropped_if_the_model_lies_on_another_device_than_earlier_tensors(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    device.held_bytes = [8, 0]

    def program() -> Any:
        torch.nn.functional.mse_loss(torch.ones(1), torch.ones(1))
        device.held_bytes = [8, 4096]
        device.streams.clear()
        return training(4)()

    watched(tmp_path, program)
    first, *others = EventLogReader(tmp_path).slices()
    assert (first.start_event, first.end_event) == (None, None)
    assert device.streams == {"stream of cuda:1"}
    times = [time for each in others for time in (each.start_event, each.end_event)]
    assert times == sorted(times)


def test_events_are_used_again_and_times_stay_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    monkeypatch.setattr("charact.measure.script.session.FLUSH_S", 0)  # after every span
    _, rows = trained(tmp_path, 50)
    assert device.num_events < 20
    per_iteration_s = [sum(row["device_s"] for row in rows if row["iteration"] == number)
                       for number in range(1, 49)]
    assert per_iteration_s == pytest.approx([0.006] * 48)  # an event each millisecond


def test_apple_s_device_has_times_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    device.held_bytes = [0]
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "current_allocated_memory", lambda: 4096)
    monkeypatch.setattr(torch.mps, "Event", device.event_class, raising=False)
    case, rows = trained(tmp_path)
    assert case.device == "mps"
    assert device.streams == {None}  # its events know no streams
    assert all(row["device_s"] is not None for row in rows)
    with pytest.raises(UserError, match="the program uses mps"):
        compute_device()


def test_a_device_without_timed_events_is_named_with_the_reason(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_event(enable_timing: bool) -> None:
        raise NotImplementedError("the compiler does not support timing")

    monkeypatch.setattr(torch.xpu, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.xpu, "device_count", lambda: 2)
    monkeypatch.setattr(torch.xpu, "memory_allocated", lambda index: index)
    monkeypatch.setattr(torch.xpu, "get_device_name", lambda device: "Intel GPU")
    monkeypatch.setattr(torch.xpu, "Event", no_event)
    monkeypatch.setattr(torch.xpu, "is_current_stream_capturing", lambda: False, raising=False)
    case, rows = trained(tmp_path)
    assert (case.device, case.device_name) == ("xpu:1", "Intel GPU")
    assert all(row["device_s"] is None for row in rows)
    (spot,) = [spot for spot in case.passes.timing.blind_spots if "xpu:1" in spot]
    assert "n/a" in spot
    assert "the compiler does not support timing" in spot


def test_no_device_is_the_program_s_before_it_holds_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    device.held_bytes = [0, 0]
    assert program_device() is None
    assert compute_device() == torch.device("cpu")
