"""A program without progress is reported once, with the place where it is."""

import threading
import time

import pytest

from charact.measure.script.ranks.collectives import FlightRecorder
from charact.measure.script.ranks.hang_watch import HangWatch
from charact.measure.script.spans.recorder import Kind, SpanRecorder


class Waiting(FlightRecorder):
    def unfinished(self) -> str | None:
        return "all_reduce 7 of group default"


@pytest.fixture
def recorder() -> SpanRecorder:
    recorder = SpanRecorder()
    recorder.on = True
    return recorder


def test_a_hang_is_reported_once_with_its_phase_and_collective(recorder: SpanRecorder) -> None:
    reports: list[str] = []
    HangWatch(recorder, Waiting(), 0.1, reports.append).start()
    recorder.enter(Kind.BACKWARD)
    time.sleep(0.5)
    recorder.leave()
    time.sleep(0.3)
    recorder.on = False
    (report,) = reports
    assert report.startswith("no progress for 0.1 s: in backward ")
    assert report.endswith("waiting in all_reduce 7 of group default")


def test_a_program_with_progress_is_not_reported(recorder: SpanRecorder) -> None:
    reports: list[str] = []
    HangWatch(recorder, Waiting(), 0.3, reports.append).start()
    for _ in range(30):
        recorder.enter(Kind.FORWARD)
        time.sleep(0.02)
        recorder.leave()
        recorder.take()
    recorder.on = False
    assert reports == []
    time.sleep(0.1)  # it ends with the recording
    assert [one.name for one in threading.enumerate() if one.name == "charact-hang"] == []
