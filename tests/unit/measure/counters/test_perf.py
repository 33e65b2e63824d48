"""Counting by perf_event_open: against real software events, and against files that stand for a processor's."""

import errno
import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from charact.measure.counters import perf
from charact.measure.counters._support.protocol import Unavailable, UnavailableError
from charact.measure.counters.perf import (
    HARDWARE,
    LINE_BYTES,
    SOURCE,
    Event,
    EventReading,
    PerfCounters,
    open_perf_event,
    unavailable_for,
)

pytestmark = [pytest.mark.clock, pytest.mark.skipif(sys.platform != "linux", reason="perf_event_open is Linux's")]
CPU = torch.device("cpu")
TASK_CLOCK = Event(1, 1)
"""A software event: nanoseconds on a core, which needs no counter of the processor."""


def spin(seconds: float) -> None:
    """Use up so much of this thread's processor time."""
    begun_s = time.thread_time()
    while time.thread_time() - begun_s < seconds:
        pass


def of_kernel(tmp_path: Path, told: dict[Event, tuple[int, int, int] | int]) -> Callable[[Event, int], int]:
    """Opens files that hold what a counter would: count, time enabled, time running; or fails with an error number."""
    def open_event(event: Event, thread: int) -> int:
        one = told[event]
        if isinstance(one, int):
            raise OSError(one, os.strerror(one))
        path = tmp_path / f"{event.number}-{thread}"
        path.write_bytes(struct.pack("=QQQ", *one))
        return os.open(path, os.O_RDONLY)

    return open_event


def counted(reading: EventReading) -> dict[str, float]:
    return dict(reading.close())


@pytest.fixture
def process_of_one_thread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A process of one thread, so that each file is read once; returns where its threads are listed."""
    tasks = tmp_path / "tasks"
    (tasks / str(os.getpid())).mkdir(parents=True)
    monkeypatch.setattr(perf, "TASKS", tasks)
    return tasks


class TestRealEvents:
    """The same path as for the processor's counters, with an event that every kernel has."""

    @pytest.fixture(autouse=True)
    def _allowed(self) -> None:
        try:
            os.close(open_perf_event(TASK_CLOCK, 0))
        except PermissionError:
            pytest.skip("this kernel lets nobody but administrators count")

    # A virtual machine's core may be taken away within a slice: the task clock counts that, the process's does not.

    def test_the_task_clock_is_the_processors_time(self) -> None:
        around_s = time.perf_counter()
        reading = EventReading({"task": TASK_CLOCK}, open_perf_event)
        within_s = time.process_time()
        spin(0.2)
        within_s = time.process_time() - within_s
        time.sleep(0.2)
        task_s = counted(reading)["task"] / 1e9
        around_s = time.perf_counter() - around_s
        assert 0.95 * within_s < task_s < around_s - 0.2

    def test_threads_that_are_there_and_those_that_come_are_counted(self) -> None:
        ended = threading.Event()
        there = threading.Thread(target=lambda: (ended.wait(), spin(0.1)))
        there.start()
        begun_s = time.perf_counter()
        reading = EventReading({"task": TASK_CLOCK}, open_perf_event)
        ended.set()
        there.join()
        comes = threading.Thread(target=spin, args=(0.1,))
        comes.start()
        comes.join()
        task_s = counted(reading)["task"] / 1e9
        assert 0.95 * 0.2 < task_s < 1.05 * (time.perf_counter() - begun_s)

    def test_files_are_closed(self) -> None:
        before = len(os.listdir("/proc/self/fd"))
        EventReading({"task": TASK_CLOCK}, open_perf_event).close()
        assert len(os.listdir("/proc/self/fd")) == before

    def test_a_thread_that_does_not_exist_is_an_error(self) -> None:
        with pytest.raises(ProcessLookupError):
            open_perf_event(TASK_CLOCK, 2**22 + 1)

    def test_the_source_says_what_the_kernel_says(self) -> None:
        expected: Unavailable | None = None
        try:
            os.close(open_perf_event(HARDWARE["num_cycles"], 0))
        except OSError as error:
            expected = unavailable_for(error)
        assert SOURCE.available() == expected


@pytest.mark.usefixtures("process_of_one_thread")
def test_what_was_counted_for_a_share_of_the_time_is_scaled(tmp_path: Path) -> None:
    told: dict[Event, tuple[int, int, int] | int] = {
        HARDWARE["num_cycles"]: (1000, 200, 100), HARDWARE["num_instructions"]: (6000, 200, 200),
        HARDWARE["num_llc_misses"]: (5, 200, 50)}
    source = PerfCounters(of_kernel(tmp_path, told))
    assert source.available() is None
    found = source.open(CPU).close()
    assert found == {"num_cycles": 2000, "num_instructions": 6000, "num_llc_misses": 20,
                     "num_instructions_per_cycle": 3, "llc_miss_bytes": 20 * LINE_BYTES}
    assert set(found) == {counter.name for counter in source.counters}


@pytest.mark.usefixtures("process_of_one_thread")
def test_an_event_that_is_not_there_is_missing_with_what_follows_from_it(tmp_path: Path) -> None:
    told: dict[Event, tuple[int, int, int] | int] = {
        HARDWARE["num_cycles"]: (1000, 200, 200), HARDWARE["num_instructions"]: (0, 200, 0),
        HARDWARE["num_llc_misses"]: errno.ENOENT}
    reading = PerfCounters(of_kernel(tmp_path, told)).open(CPU)
    assert counted(reading) == {"num_cycles": 1000}
    assert reading.missing == {
        "num_llc_misses": "the processor's counters are not available, as in most virtual machines",
        "llc_miss_bytes": "the processor's counters are not available, as in most virtual machines",
        "num_instructions": "other events used all of the processor's counters",
        "num_instructions_per_cycle": "other events used all of the processor's counters"}


@pytest.mark.parametrize(("number", "reason", "remedy"), [
    (errno.ENOENT, "virtual machines", "bare machine"), (errno.EACCES, "administrators", "perf_event_paranoid=1"),
    (errno.EPERM, "administrators", "CAP_PERFMON"), (errno.EMFILE, "open a file for each thread", "ulimit -n"),
    (errno.ENOSYS, "no perf_event_open", None), (errno.EINVAL, "Invalid argument", None),
])
def test_each_refusal_has_its_reason(tmp_path: Path, number: int, reason: str, remedy: str | None) -> None:
    source = PerfCounters(of_kernel(tmp_path, dict.fromkeys(HARDWARE.values(), number)))
    found = source.available()
    assert found is not None
    assert reason in found.reason
    assert "\n" not in f"{found.reason}{found.remedy}"
    assert (found.remedy is None) == (remedy is None)
    assert remedy is None or (found.remedy is not None and remedy in found.remedy)
    with pytest.raises(UnavailableError) as refused:
        source.open(CPU)
    assert refused.value.unavailable == found


def test_a_thread_that_ends_meanwhile_is_left_out(tmp_path: Path) -> None:
    told: dict[Event, tuple[int, int, int] | int] = dict.fromkeys(HARDWARE.values(), errno.ESRCH)
    assert counted(PerfCounters(of_kernel(tmp_path, told)).open(CPU)) == {}


def test_files_of_other_threads_are_closed_where_one_is_refused(tmp_path: Path, process_of_one_thread: Path) -> None:
    (process_of_one_thread / "77").mkdir()
    opened: list[int] = []

    def open_event(_: Event, __: int) -> int:
        if opened:
            raise PermissionError(errno.EACCES, "no")
        opened.append(os.open(tmp_path, os.O_RDONLY))
        return opened[0]

    with pytest.raises(UnavailableError):
        EventReading({"task": TASK_CLOCK}, open_event)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(opened[0])


def test_an_unknown_architecture_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert SOURCE.available() == Unavailable("perf_event_open is not known here: linux on riscv64")
