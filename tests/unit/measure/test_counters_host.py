import mmap
import subprocess
import sys
import time

import pytest

from charact.hardware import usable_cores
from charact.measure.counters import all_sources
from charact.measure.counters.host import HostCounters
from charact.schema import column_names

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the source reads Linux's /proc")


def values(source: HostCounters) -> dict[str, float]:
    return {row["counter"]: row["value"] for row in source.stop()}


@pytest.mark.parametrize("source", all_sources().values(), ids=all_sources().keys())
def test_every_source_gives_rows_of_the_table_counters(source: HostCounters) -> None:
    reason = source.available()
    if reason is not None:
        pytest.skip(reason)
    source.start()
    rows = source.stop()
    declared = {counter.name for counter in source.counters}
    assert rows
    for row in rows:
        assert set(row) == set(column_names("counters")) - {"case"}
        assert row["source"] == source.name
        assert row["counter"] in declared
    assert all(counter.definition and counter.scope for counter in source.counters)
    assert all(name.startswith("num_") or name.endswith(("_bytes", "_frac", "_s")) for name in declared)


def test_one_busy_thread_is_one_core() -> None:
    source = HostCounters()
    source.start()
    begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
    while time.process_time() - begin_cpu_s < 0.2:
        pass
    cpu_s, wall_s = time.process_time() - begin_cpu_s, time.perf_counter() - begin_s
    expected = cpu_s / (wall_s * usable_cores())
    assert values(source)["cpu_utilization_frac"] == pytest.approx(expected, rel=0.1)


def test_a_sleeping_process_uses_no_core_and_gives_up_its_own() -> None:
    source = HostCounters()
    source.start()
    for _ in range(10):
        time.sleep(0.02)
    found = values(source)
    assert found["cpu_utilization_frac"] < 0.1
    assert found["num_voluntary_context_switches"] >= 10


def test_every_page_that_is_touched_first_is_a_fault_and_resident() -> None:
    num_pages = 4096
    source = HostCounters()
    source.start()
    before = values(source)
    source.start()
    with mmap.mmap(-1, num_pages * mmap.PAGESIZE) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        for page in range(num_pages):
            memory[page * mmap.PAGESIZE] = 1
        found = values(source)
    assert num_pages <= found["num_minor_page_faults"] < 1.2 * num_pages
    assert found["rss_bytes"] - before["rss_bytes"] == pytest.approx(num_pages * mmap.PAGESIZE, rel=0.1)
    assert found["peak_rss_bytes"] >= found["rss_bytes"]


def test_peak_is_that_of_the_process_and_not_of_the_one_that_started_it() -> None:
    ballast = bytearray(300 * 2**20)
    ballast[::4096] = bytes(len(ballast[::4096]))
    program = ("from charact.measure.counters.host import SOURCE; SOURCE.start();"
               "print({row['counter']: row['value'] for row in SOURCE.stop()}['peak_rss_bytes'])")
    peak_bytes = float(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                                      check=True).stdout)
    assert peak_bytes < 100 * 2**20


def test_another_system_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert HostCounters().available() == "read from Linux's /proc, which darwin does not have"
