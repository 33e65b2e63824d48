"""Times of kernels that are shorter than their launch, on a stub of a GPU whose host is slower than its device."""

from collections.abc import Iterator

import pytest
import torch
from support.stub_cuda import StubGpu

from charact.measure.microbench import call_timer, ceiling_probes
from charact.measure.microbench.call_timer import CudaClock, queued, time_together
from charact.measure.microbench.ceiling_probes import Probe, seconds_per_call

CUDA = torch.device("cuda", 0)
KERNEL_S, LAUNCH_S = 8e-6, 25e-6


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubGpu]:
    call_timer._queue.cache_clear()
    yield StubGpu(monkeypatch, "charact.measure.microbench.call_timer")
    call_timer._queue.cache_clear()


def calls(gpu: StubGpu, number: int) -> None:
    for _ in range(number):
        gpu.launch(KERNEL_S, LAUNCH_S)


@pytest.mark.parametrize("hz", [5e8, 2e9])
def test_a_hundred_launches_that_outlast_a_millisecond_are_all_queued(gpu: StubGpu, hz: float) -> None:
    gpu.hz = hz
    host_s, device_s = time_together(lambda: calls(gpu, 100), 100, CUDA)
    assert device_s == pytest.approx(KERNEL_S)
    assert host_s == pytest.approx(LAUNCH_S)


def test_the_sleep_that_was_needed_is_known_the_next_time_and_forgotten_later(gpu: StubGpu) -> None:
    num_calls = 0

    def run() -> None:
        nonlocal num_calls
        num_calls += 1
        calls(gpu, 100)

    for _ in range(3):
        time_together(run, 100, CUDA)
    assert num_calls == 4
    for _ in range(8):
        time_together(lambda: calls(gpu, 1), 1, CUDA)
    before_s = gpu.host_s
    time_together(lambda: calls(gpu, 1), 1, CUDA)
    assert gpu.host_s - before_s < 1.2e-3


def test_the_host_s_time_of_calls_that_wait_excludes_the_sleep(gpu: StubGpu) -> None:
    def waits() -> None:
        gpu.launch(KERNEL_S, LAUNCH_S)
        gpu.synchronize()

    for _ in range(20):
        host_s, device_s = time_together(waits, 1, CUDA)
        assert host_s == pytest.approx(KERNEL_S + LAUNCH_S)
        assert device_s == pytest.approx(KERNEL_S)
    assert gpu.host_s < 20 * 10e-3


def test_launch_latency_is_kept_where_it_is_asked_for(gpu: StubGpu) -> None:
    _, device_s = time_together(lambda: calls(gpu, 100), 100, CUDA, queued=False)
    assert device_s == pytest.approx(LAUNCH_S, rel=0.01)


def test_a_single_call_of_many_launches_is_repeated_until_it_is_queued(gpu: StubGpu) -> None:
    clock = CudaClock()
    found = queued(clock, lambda: clock.time(calls, gpu, 200)[1])
    assert found == pytest.approx(200 * KERNEL_S)
    assert not clock.outlasted


def test_the_sleep_before_a_call_that_waits_does_not_grow(gpu: StubGpu) -> None:
    clock = CudaClock()
    before_s = gpu.host_s
    for _ in range(30):
        clock.time(gpu.synchronize)
    assert gpu.host_s - before_s < 30 * 4e-3


def test_a_launch_is_no_part_of_a_copy_in_the_cache(gpu: StubGpu) -> None:
    copy = Probe("copy", "bytes_per_s", 3e7, lambda: gpu.launch(2.5e-6 + 5e-6, 4e-6), level="L2",
                 launch=lambda: gpu.launch(2.5e-6, 4e-6))
    assert seconds_per_call(copy, CUDA, 100) == pytest.approx(5e-6)


def test_probes_of_a_cache_of_a_gpu_have_a_launch_to_subtract(monkeypatch: pytest.MonkeyPatch) -> None:
    ones = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *sizes, device: ones(*sizes))
    for level, subtracted in (("L2", True), ("memory", False)):
        for probe in ceiling_probes._streams(CUDA, level, 2**20, None):
            probe.call()
            assert (probe.launch is not None) == subtracted
            if probe.launch is not None:
                probe.launch()
