"""NVML's and GPM's counters on a real device, under a known load."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from statistics import fmean
from typing import Any

import pynvml
import pytest
import torch
from support.device_clocks import peak_bytes_per_s, sampled_powers_w, spin_kernel

from charact.measure.counters._support.nvml_library import find_gpu, start, torch_uuid
from charact.measure.counters._support.protocol import UnavailableError
from charact.measure.counters.gpm import LAG_S
from charact.measure.counters.gpm import SOURCE as GPM
from charact.measure.counters.nvml import SOURCE as NVML

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available() or torch.version.cuda is None,
                                                  reason="needs a CUDA device of NVIDIA's")]
DEVICE = torch.device("cuda", 0)
LOAD_S = 1.5

Samples = list[Mapping[str, float]]


def lasting(seconds: float) -> Iterator[None]:
    begin_s = time.perf_counter()
    while time.perf_counter() - begin_s < seconds:
        yield


def under_load(source: Any, launch: Callable[[], object],
               load_s: float = LOAD_S) -> tuple[Samples, Mapping[str, float], float, int]:
    """Samples and whole of a source while the same is launched again and again, for how long, and how often."""
    refusal = source.available()
    if refusal is not None:
        pytest.skip(refusal.reason)
    launch()
    torch.cuda.synchronize(DEVICE)
    try:
        reading = source.open(DEVICE)
    except UnavailableError as refused:
        pytest.skip(refused.unavailable.reason)
    for _ in lasting(2 * LAG_S):
        launch()
        torch.cuda.current_stream(DEVICE).synchronize()
    reading.sample()  # GPM's first snapshot, which shows the load
    begin_s = time.perf_counter()
    samples: Samples = []
    num_launched, due_s = 0, begin_s + 0.2
    for _ in lasting(load_s):
        for _ in range(4):
            launch()
        num_launched += 4
        torch.cuda.current_stream(DEVICE).synchronize()
        if time.perf_counter() > due_s:
            samples.append(reading.sample())
            due_s = time.perf_counter() + 0.2
    whole = reading.close()
    return samples, whole, time.perf_counter() - begin_s, num_launched


def product() -> Callable[[], object]:
    a, b = (torch.randn(8192, 8192, device=DEVICE, dtype=torch.float16) for _ in range(2))
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


def copy_of(num_bytes: int) -> Callable[[], object]:
    a, b = (torch.zeros(num_bytes, device=DEVICE, dtype=torch.uint8) for _ in range(2))
    return lambda: b.copy_(a)


@contextlib.contextmanager
def management() -> Iterator[Any]:
    """NVML's handle of the GPU."""
    with contextlib.ExitStack() as resources:
        start(resources)
        yield find_gpu(torch_uuid(DEVICE)).handle


@pytest.fixture(scope="module")
def nvml() -> tuple[Samples, Mapping[str, float], float, int]:
    return under_load(NVML, product())


def test_energy_is_instantaneous_power_times_time() -> None:
    """Power that this test samples itself, while the meter of the source runs."""
    launch = product()
    under_load(NVML, launch)  # until power is steady
    with management() as gpu, sampled_powers_w(gpu) as powers_w:
        begin_s = time.perf_counter()
        _, whole, duration_s, _ = under_load(NVML, launch, 6.0)
    inside = [power_w for at_s, power_w in powers_w if begin_s <= at_s <= begin_s + duration_s]
    if "energy_j" not in whole or not inside:
        pytest.skip("this GPU has no meter, or does not report its power now")
    assert whole["energy_j"] == pytest.approx(fmean(inside) * duration_s, rel=0.07)
    assert whole["power_w"] == pytest.approx(fmean(inside), rel=0.07)


def test_power_is_within_the_limit_of_the_device(nvml: tuple[Samples, Mapping[str, float], float, int]) -> None:
    samples, _, _, _ = nvml
    powers_w = [sample["power_w"] for sample in samples if "power_w" in sample]
    if not powers_w:
        pytest.skip("this device does not tell its power")
    with management() as gpu:
        limit_w = pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1e3
    assert all(0 < power_w < 1.2 * limit_w for power_w in powers_w)


def test_memory_is_what_cuda_counts(nvml: tuple[Samples, Mapping[str, float], float, int]) -> None:
    free, total = torch.cuda.mem_get_info(DEVICE)
    reading = NVML.open(DEVICE)
    used = reading.sample()["memory_used_bytes"]
    reading.close()
    assert used == pytest.approx(total - free, rel=0.05)


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_occupancy_is_that_of_a_kernel_of_known_blocks(share: float) -> None:
    spin = spin_kernel()
    if spin is None:
        pytest.skip("this PyTorch compiles no kernels")
    properties = torch.cuda.get_device_properties(DEVICE)
    blocks = int(share * properties.multi_processor_count)
    _, whole, _, _ = under_load(GPM, lambda: spin((blocks, 1, 1), (1024, 1, 1), [20_000_000]))
    occupancy = 1024 / properties.max_threads_per_multi_processor
    assert whole["sm_utilization_frac"] == pytest.approx(share, rel=0.1)
    assert whole["sm_occupancy_frac"] == pytest.approx(share * occupancy, rel=0.1)
    assert whole["warp_occupancy_frac"] == pytest.approx(occupancy, rel=0.1)


def test_every_fraction_is_one(nvml: tuple[Samples, Mapping[str, float], float, int]) -> None:
    samples, _, _, _ = nvml
    assert samples
    for sample in samples:
        assert all(0 <= value <= 1 for name, value in sample.items() if name.endswith("_frac"))
        assert 1e8 < sample["sm_clock_hz"] < 1e10


def test_a_product_keeps_multiprocessors_and_tensor_cores_busy() -> None:
    samples, whole, _, _ = under_load(GPM, product())
    for found in [*samples, whole]:
        assert 0.5 < found["sm_utilization_frac"] <= 1
        assert 0 < found["sm_occupancy_frac"] <= found["sm_utilization_frac"]
        assert 0 < found["warp_occupancy_frac"] <= 1
        assert 0 < found["bandwidth_utilization_frac"] <= 1
        assert found["tensor_pipe_frac"] > 0.2
        assert found["fp64_pipe_frac"] < 0.05


def test_a_big_copy_uses_the_bandwidth_that_bytes_over_time_say() -> None:
    num_bytes = 2**31
    samples, whole, duration_s, num_copies = under_load(GPM, copy_of(num_bytes))
    with management() as gpu:
        expected = 2 * num_bytes * num_copies / duration_s / peak_bytes_per_s(gpu)
    assert whole["bandwidth_utilization_frac"] == pytest.approx(expected, rel=0.10)
    windows = [sample["bandwidth_utilization_frac"] for sample in samples]
    assert whole["bandwidth_utilization_frac"] == pytest.approx(sum(windows) / len(windows), rel=0.1)
