"""The clock of single calls, and the settings that bricks are timed under."""

import gc
import time
from statistics import median

import pytest
import torch

from charact.bricks.timing.suite_run import brick_settings
from charact.measure.microbench.call_timer import HostClock, clock_for, seconds

pytestmark = pytest.mark.clock

CPU = torch.device("cpu")


def test_a_sleep_takes_as_long_as_it_sleeps() -> None:
    clock = clock_for(CPU)
    took = {length: median(clock.time(time.sleep, length)[0] for _ in range(3)) for length in (0.01, 0.04)}
    assert took[0.01] >= 0.01
    assert 2 < took[0.04] / took[0.01] < 6


def test_what_does_nothing_takes_hardly_anything() -> None:
    """Not so: the clock's two readings, which take longer than such a call."""
    clock = HostClock()
    assert clock.own_s > 0
    times = [clock.time(lambda _: None, None) for _ in range(201)]
    assert median(host_s for host_s, _ in times) < clock.own_s
    assert all(host_s > 0 and device_s is None for host_s, device_s in times)


def test_giving_back_the_result_is_part_of_a_call() -> None:
    class Slow:
        def __del__(self) -> None:
            time.sleep(0.01)

    assert HostClock().time(Slow)[0] >= 0.01


def test_seconds_are_the_devices_where_it_has_some() -> None:
    assert seconds((2.0, 1.0)) == 1.0
    assert seconds((2.0, None)) == 2.0


@pytest.mark.slow_variants
@pytest.mark.parametrize(("precision", "matrices"), [("tf32", "high"), ("fp32", "highest")])
def test_settings_are_those_of_the_precision_and_come_back(precision: str, matrices: str) -> None:
    before = torch.get_float32_matmul_precision()
    with brick_settings(precision):
        assert torch.get_float32_matmul_precision() == matrices
        assert gc.get_freeze_count() > 0
        assert gc.isenabled()
    assert torch.get_float32_matmul_precision() == before
    assert gc.get_freeze_count() == 0


def mapped_anew() -> int:
    """Page faults of writing 64 MB three times, each time into memory that was given back before."""
    import resource

    begun = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(3):
        torch.ones(16_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - begun


@pytest.mark.fresh_process
@pytest.mark.slow
def test_memory_that_was_given_back_is_kept() -> None:
    usual = mapped_anew()
    with brick_settings("fp32"):
        for _ in range(5):  # until blocks that were aligned, and so are a little short, lie side by side
            mapped_anew()
        kept = mapped_anew()
    assert kept < usual / 10
    assert mapped_anew() > usual / 10
