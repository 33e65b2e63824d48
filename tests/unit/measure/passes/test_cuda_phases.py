"""CUDA phase marks against a made device: a stream that works through events in its own time."""

from typing import Any

import pytest
import torch

from charact.core.timeline import iteration_rows
from charact.measure.passes.phase_timer import DevicePhases


class Device:
    """A stream on which `work` queues milliseconds of kernels; it has passed the events up to `reached_ms`."""

    def __init__(self) -> None:
        self.queued_ms = 0.0
        self.reached_ms = 0.0
        self.num_synchronizations = 0
        self.num_events = 0

    def work(self, milliseconds: float) -> None:
        self.queued_ms += milliseconds


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    stream = Device()

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing
            stream.num_events += 1

        def record(self, recorded_on: Device) -> None:
            assert recorded_on is stream
            self.time_ms = stream.queued_ms

        def synchronize(self) -> None:
            stream.num_synchronizations += 1
            stream.reached_ms = max(stream.reached_ms, self.time_ms)

        def query(self) -> bool:
            return self.time_ms <= stream.reached_ms

        def elapsed_time(self, end: Any) -> float:
            assert end.query(), "read before the device has passed it"
            return end.time_ms - self.time_ms

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream)
    return stream


def iterate(phases: DevicePhases, device: Device) -> None:
    with phases:
        with phases("data"):
            device.work(1)
        with phases("forward"):
            device.work(20)
        device.work(3)  # between marks
        with phases("backward"):
            device.work(40)


def test_phases_are_read_after_the_iteration_and_sum_to_the_wall(device: Device) -> None:
    phases = DevicePhases(torch.device("cuda", 0))
    iterate(phases, device)
    assert phases.take() == []  # the device has done nothing yet: no wait, no synchronization
    assert device.num_synchronizations == 0
    iterate(phases, device)
    device.reached_ms = 64
    (first,) = phases.take()
    assert {row["phase"]: row["device_s"] for row in iteration_rows([first])} == pytest.approx(
        {"data": 0.001, "forward": 0.020, "backward": 0.040, "other": 0.003})
    assert all(row["host_s"] >= 0 for row in iteration_rows([first]))
    assert device.num_synchronizations == 0
    (second,) = phases.take(wait=True)
    assert device.num_synchronizations == 1
    assert second.wall_s == pytest.approx(0.064)


def test_events_are_used_again(device: Device) -> None:
    phases = DevicePhases(torch.device("cuda", 0))
    for _ in range(5):
        iterate(phases, device)
        phases.take(wait=True)
    assert device.num_events == 2 + 2 * 3


def test_the_host_is_at_most_one_iteration_ahead(device: Device) -> None:
    phases = DevicePhases(torch.device("cuda", 0))
    for number in range(4):
        iterate(phases, device)
        phases.keep_up()
        assert device.reached_ms == 64 * number
        assert len(phases.take()) == min(1, number)
