"""Warming up a GPU, on a stub whose kernels take four times as long until it has worked for some time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from support.stub_cuda import StubGpu

from charact.measure.microbench import call_timer, operation_timing
from charact.measure.passes import warm_device as warming
from charact.measure.passes.timing import StopRule
from charact.measure.passes.warm_device import warm_device
from charact.ops import Prepared

CUDA = torch.device("cuda", 0)
NVML = "charact.measure.counters._support.nvml_library.sm_clock_reader"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubGpu]:
    call_timer._queue.cache_clear()
    gpu = StubGpu(monkeypatch, "charact.measure.microbench.call_timer", "charact.measure.passes.warm_device")
    monkeypatch.setattr(NVML, lambda device: no_clock())
    yield gpu
    call_timer._queue.cache_clear()


@contextmanager
def no_clock() -> Iterator[None]:
    yield None


def test_a_cpu_needs_none() -> None:
    assert warm_device(torch.device("cpu"), pytest.fail) == 0


@pytest.mark.parametrize("kernel_s", [8e-6, 1e-3, 0.3])
def test_work_is_repeated_for_as_long_as_the_device_is_busy(gpu: StubGpu, kernel_s: float) -> None:
    num_calls = warm_device(CUDA, lambda: gpu.launch(kernel_s, 5e-6))
    assert gpu.num_launches == num_calls
    assert warming.MIN_BUSY_S <= gpu.busy_s < 1


def test_it_goes_on_until_the_clock_is_steady(gpu: StubGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def rising() -> Iterator[Callable[[], float]]:
        yield lambda: min(1.98e9, 0.3e9 + 2e9 * gpu.busy_s)

    monkeypatch.setattr(NVML, lambda device: rising())
    warm_device(CUDA, lambda: gpu.launch(1e-3, 5e-6))
    assert 0.84 + 0.08 < gpu.busy_s < 1.1


def test_a_clock_that_is_never_steady_does_not_keep_it(gpu: StubGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def unsteady() -> Iterator[Callable[[], float]]:
        yield lambda: 1e9 + gpu.num_launches

    monkeypatch.setattr(NVML, lambda device: unsteady())
    monkeypatch.setattr(warming, "_STEADY_FRAC", 0.0)
    warm_device(CUDA, lambda: gpu.launch(1e-3, 5e-6))
    assert 2 <= gpu.host_s < 2.2


def test_an_operation_is_timed_at_full_clock(gpu: StubGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.slow_until_s = 0.35
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=0))
    prepared = Prepared(lambda: [torch.ones(1)], lambda tensor: gpu.launch(1e-3, 5e-6), torch.neg, torch.neg, 0.0)
    timing = operation_timing.time_direction(prepared, [[torch.ones(1)]], CUDA, StopRule(0.0, 10), lambda *_: None)
    assert len(timing.rows) >= 6
    assert all(row["device_s"] == pytest.approx(1e-3) for row in timing.rows)
    assert timing.facts.num_warmup_calls > 100


def test_what_is_excluded_from_an_operation_is_not_in_its_time(
        gpu: StubGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=0))
    prepared = Prepared(lambda: [torch.ones(1)], lambda tensor: gpu.launch(1.2e-3, 15e-6), torch.neg, torch.neg, 0.0,
                        excluded=lambda tensor: gpu.launch(0.2e-3, 5e-6))
    timing = operation_timing.time_direction(prepared, [[torch.ones(1)]], CUDA, StopRule(0.0, 10), lambda *_: None)
    assert all(row["device_s"] == pytest.approx(1e-3) for row in timing.rows)
    assert all(row["host_s"] == pytest.approx(10e-6) for row in timing.rows)
