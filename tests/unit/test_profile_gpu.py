"""`charact.profile` of a function that launches work on a GPU and returns at once, on a stub of the GPU."""

from pathlib import Path

import pytest
import torch
from support.stub_cuda import StubGpu

import charact
from charact.measure.script.spans.event_log_reader import EventLog, read_event_log
from charact.measure.script.spans.event_log_to_record import script_cases
from charact.profiler import Profiler

PRODUCT_S, LAUNCH_S = 1.4e-3, 1e-5


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> StubGpu:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "stub")
    gpu = StubGpu(monkeypatch, "charact.measure.passes.phase_timer", "charact.measure.passes.warm_device")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: object())
    return gpu


def test_the_time_of_a_call_is_the_device_s(
        gpu: StubGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs: list[EventLog] = []
    monkeypatch.setattr(Profiler, "_recover", lambda self, begun: logs.append(read_event_log(begun.directory)))
    monkeypatch.setattr(Profiler, "run", None)  # the log is read in this process
    gpu.slow_until_s = 0.3
    charact.profile(lambda: gpu.launch(PRODUCT_S, LAUNCH_S), out=tmp_path, name="product")
    ((case, tables),) = script_cases(logs[0], "product", "-", 0, None)
    facts = case.passes.timing
    assert facts.median_s == pytest.approx(PRODUCT_S)
    assert facts.ended_by == "precision"
    assert facts.num_iterations < 100
    # The first call finds an idle device, and waits for its launch.
    times_s = [row["device_s"] for row in tables["iterations"]]
    assert times_s == pytest.approx([PRODUCT_S + LAUNCH_S] + [PRODUCT_S] * (len(times_s) - 1))
    assert case.device == "cuda"
