"""What the operating system counts, against work and memory of known size."""

import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from charact.machine.facts import usable_cores
from charact.measure.counters import host
from charact.measure.counters._support.protocol import Unavailable
from charact.measure.counters.host import SOURCE, HostCounters

pytestmark = [pytest.mark.clock, pytest.mark.skipif(sys.platform != "linux", reason="the source reads Linux's /proc")]
CPU = torch.device("cpu")
WORKER_S = 0.05


class Busy(Dataset[int]):
    """Samples that take a worker a known time of its processor."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, _: int) -> int:
        spin(WORKER_S)
        return os.getpid()


def spin(seconds: float) -> None:
    """Use up so much of this thread's processor time."""
    begun_s = time.thread_time()
    while time.thread_time() - begun_s < seconds:
        pass


class Stretch:
    """What the source counts over a `with` block, and what the process's own clocks tell."""

    def __enter__(self) -> "Stretch":
        self.reading = SOURCE.open(CPU)
        self._begun_s, self._begun_cpu_s = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall_s = time.perf_counter() - self._begun_s
        self.cpu_s = time.process_time() - self._begun_cpu_s
        self.values: Mapping[str, float] = self.reading.close()


def test_all_counters_are_declared_and_told() -> None:
    with Stretch() as stretch:
        sample = stretch.reading.sample()
    declared = {counter.name for counter in SOURCE.counters}
    assert set(stretch.values) | set(stretch.reading.missing) == declared
    assert set(sample) < declared


def test_one_busy_thread_is_one_core() -> None:
    with Stretch() as stretch:
        spin(0.2)
    found = stretch.values
    assert found["cpu_utilization_frac"] == pytest.approx(stretch.cpu_s / (stretch.wall_s * usable_cores()), rel=0.1)
    assert found["num_cores_main_thread"] == pytest.approx(0.2 / stretch.wall_s, rel=0.1)
    assert found["num_cores_other_threads"] < 0.1 * found["num_cores_main_thread"]


def test_a_sleeping_process_uses_no_core_and_gives_up_its_own() -> None:
    with Stretch() as stretch:
        for _ in range(10):
            time.sleep(0.02)
    assert stretch.values["cpu_utilization_frac"] < 0.1
    assert stretch.values["num_voluntary_context_switches"] >= 10


def test_pools_sum_to_the_process() -> None:
    done, ended = threading.Event(), threading.Event()
    with Stretch() as stretch:
        other = threading.Thread(target=lambda: (spin(0.1), done.set(), ended.wait()))
        other.start()
        spin(0.2)
        done.wait()
        stretch.reading.sample()  # before the thread ends, with which its time would go
        ended.set()
        other.join()
    used = {pool: stretch.values[f"num_cores_{pool}"] * stretch.wall_s for pool in host.POOLS}
    assert sum(used.values()) == pytest.approx(stretch.cpu_s, rel=0.1)
    assert used["main_thread"] == pytest.approx(0.2, rel=0.1)
    assert used["other_threads"] == pytest.approx(0.1, rel=0.1)


def test_samples_tell_what_was_done_since_the_one_before() -> None:
    reading = SOURCE.open(CPU)
    begun_s = time.perf_counter()
    spin(0.1)
    busy = reading.sample()
    assert busy["num_cores_main_thread"] == pytest.approx(0.1 / (time.perf_counter() - begun_s), rel=0.2)
    time.sleep(0.1)
    assert reading.sample()["num_cores_main_thread"] < 0.2


@pytest.mark.slow
def test_pythons_own_threads_are_others_and_native_ones_compute() -> None:
    program = ("import threading, time, torch\n"
               "from charact.measure.counters.host import ProcessorTimes\n"
               "torch.set_num_threads(2)\n"
               "a = torch.randn(700, 700)\n"
               "a @ a\n"
               "times, begun_s = ProcessorTimes(), time.process_time()\n"
               "while time.process_time() - begun_s < 1:\n"
               "    a @ a\n"
               "one = times.look()\n"
               "ended = threading.Event()\n"
               "spin = threading.Thread(target=lambda: all(True for _ in iter(ended.is_set, True)))\n"
               "spin.start(); time.sleep(0.3); two = times.look(); ended.set()\n"
               "print(one['compute_threads'], one['other_threads'], two['other_threads'], two['compute_threads'])")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True,
                          env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "2"})
    computing_s, others_s, spinning_s, idle_s = map(float, done.stdout.split())
    assert computing_s == pytest.approx(0.5, abs=0.15)  # of two threads' second
    assert others_s < 0.05
    assert spinning_s > 10 * idle_s


@pytest.mark.parametrize(("name", "pool"), [
    ("pt_autograd_0", "autograd_threads"), ("PTThreadPool", "compute_threads"), ("pt_data_pin", "loader_threads"),
    ("cuda-EvtHandlr", "other_threads"),
])
def test_named_threads_are_known_by_their_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str,
                                                pool: str) -> None:
    for number, thread_name in ((os.getpid(), "python"), (77, name), (78, "python")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "comm").write_text(f"{thread_name}\n")
    monkeypatch.setattr(host, "TASKS", tmp_path)
    assert [host._pool(number) for number in (os.getpid(), 77, 78)] == ["main_thread", pool, "compute_threads"]


@pytest.mark.slow
def test_a_loaders_workers_are_counted_with_their_time_and_memory() -> None:
    loader = iter(DataLoader(Busy(), batch_size=2, num_workers=2, prefetch_factor=2))
    workers = set(next(loader).tolist())
    with Stretch() as stretch:
        for _ in range(6):
            workers |= set(next(loader).tolist())
    del loader
    found = stretch.values
    assert len(workers) == found["num_loader_workers"] == 2
    # Batches that were on their way at either end are two of six.
    assert found["num_cores_loader_workers"] == pytest.approx(12 * WORKER_S / stretch.wall_s, rel=0.4)
    assert found["num_cores_main_thread"] < 0.3 * found["num_cores_loader_workers"]
    assert found["loader_workers_rss_bytes"] > 2 * 10e6
    assert found["rss_bytes"] < found["pss_bytes"] + 1e6 + found["loader_workers_rss_bytes"]
    assert found["pss_bytes"] < found["rss_bytes"] + found["loader_workers_rss_bytes"]


def test_every_page_that_is_touched_first_is_a_fault_and_resident() -> None:
    num_pages = 4096
    before = SOURCE.open(CPU).close()
    with mmap.mmap(-1, num_pages * mmap.PAGESIZE) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        with Stretch() as stretch:
            for page in range(num_pages):
                memory[page * mmap.PAGESIZE] = 1
    found = stretch.values
    assert num_pages <= found["num_minor_page_faults"] < 1.2 * num_pages
    for counter in ("rss_bytes", "pss_bytes"):
        assert found[counter] - before[counter] == pytest.approx(num_pages * mmap.PAGESIZE, rel=0.1)
    assert found["peak_rss_bytes"] >= found["rss_bytes"]


@pytest.mark.slow
def test_peak_is_that_of_the_process_and_not_of_the_one_that_started_it() -> None:
    ballast = bytearray(500 * 2**20)
    ballast[::4096] = bytes(len(ballast[::4096]))
    program = ("import torch; from charact.measure.counters.host import SOURCE;"
               "print(SOURCE.open(torch.device('cpu')).close()['peak_rss_bytes'])")
    peak_bytes = float(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                                      check=True).stdout)
    assert peak_bytes < 450 * 2**20


def test_a_kernel_that_lists_no_children_gives_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.threading.main_thread(), "_native_id", 0)
    with Stretch() as stretch:
        sample = stretch.reading.sample()
    lost = {"num_loader_workers", "loader_workers_rss_bytes", "num_cores_loader_workers"}
    assert set(stretch.reading.missing) == lost
    assert not lost & (set(stretch.values) | set(sample))


def test_another_system_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert HostCounters().available() == Unavailable("read from Linux's /proc, which darwin does not have")
