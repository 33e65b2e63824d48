"""Events of a watched program on CUDA, with a stand-in for `torch.cuda` that refuses what a real device refuses."""

from pathlib import Path

import pytest
import torch

from charact.measure.script.session import Plan, Session
from charact.measure.script.spans.event_log import EventLogReader
from charact.measure.script.spans.recorder import Kind


class Device:
    """A device that passes an event at once, and fails if one is touched while a graph is captured."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.capturing = False
        self.now_ms = 0.0
        device = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing
                self.at_ms = -1.0

            def record(self) -> None:
                device.must_not_capture()
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

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capturing)

    def must_not_capture(self) -> None:
        assert not self.capturing, "operation not permitted when stream is capturing"


@pytest.mark.parametrize("ends_inside", [False, True])
def test_no_event_is_touched_while_a_graph_is_captured(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_inside: bool) -> None:
    device = Device(monkeypatch)
    monkeypatch.setattr("charact.measure.script.session.FLUSH_S", 0)  # after every span
    session = Session(tmp_path, Plan(iterations=1, skip=1) if ends_inside else Plan())
    session.start()
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for captured in (False, True, True, False):
        device.capturing = captured
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    device.capturing = False
    session.close("to its end")
    assert session.problem is None
    slices = list(EventLogReader(tmp_path).slices())
    forwards = [one for one in slices if one.kind is Kind.FORWARD]
    timed = [one.start_event is not None and one.end_event is not None for one in forwards]
    assert timed == ([True, False, False] if ends_inside else [True, False, False, True])
    times = [one.end_event - one.start_event for one in forwards if one.end_event is not None]
    assert times == [1_000_000] * len(times)


def test_a_graph_that_is_captured_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    device.capturing = True
    session = Session(tmp_path, Plan())
    session.start()
    model = torch.nn.Linear(2, 2)
    model(torch.ones(1, 2))
    device.capturing = False
    session.close("to its end")
    assert session.problem is None
    assert [one.end_event for one in EventLogReader(tmp_path).slices()] == [None]
