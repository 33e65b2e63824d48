"""Bandwidth of collectives: its arithmetic, and a measurement between two ranks."""

from pathlib import Path

import pytest

from charact.core.bus_bandwidth import bus_factor
from charact.machine.ceilings_cache import NotCached, cache_ceilings
from charact.machine.collective_ceilings import (
    best_collectives,
    collectives_file,
    collectives_now_measured,
    read_collectives,
)
from charact.measure.microbench.collective_ceilings import collective_ceiling, measure_collectives


def test_the_bus_factors_are_those_of_nccl_tests() -> None:
    assert [bus_factor(name, 4) for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast")] == [
        1.5, 0.75, 0.75, 1.0]


def test_the_bandwidth_follows_from_the_median_time_and_its_interval() -> None:
    row = collective_ceiling("all_reduce", 1000, 4, [3.0, 1.0, 2.0, 2.0, 5.0, 2.0])
    assert row == {"operation": "all_reduce", "bytes": 1000, "time_s": 2.0, "bus_bytes_per_s": 750.0,
                   "low": 300.0, "high": 1500.0}


def test_the_cache_keeps_each_number_of_ranks_and_backend_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                                                ) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    slow, fast = (collective_ceiling("all_reduce", size, 2, [1.0] * 6) for size in (1000, 4000))
    path = collectives_file("machine", "2.13", 2, "gloo")
    cache_ceilings(path, collectives_now_measured("gloo", 2, [slow, fast], {"reduce_scatter": "not supported"}))
    found = best_collectives("machine", "2.13", [(2, "gloo"), (4, "gloo"), (2, "nccl")])
    assert found["collective_ceilings"] == [{"backend": "gloo", "num_ranks": 2, **fast}]
    assert found["collective_ceilings_reason"] == (
        "collectives of 4 ranks (gloo): they were not measured yet; charact doctor --ceilings --nproc 4 measures them; "
        "collectives of 2 ranks (nccl): they were not measured yet; charact doctor --ceilings --nproc 2 measures them")
    path.write_text(path.read_text().replace('"num_ranks": 2', '"num_ranks": "two"'))
    with pytest.raises(NotCached, match="is damaged"):
        read_collectives(path)


@pytest.mark.slow
def test_two_ranks_measure_every_collective_at_every_size() -> None:
    rows, unavailable = measure_collectives(2, "cpu", (1000, 2**20))
    assert unavailable == {}
    assert [(row["operation"], row["bytes"]) for row in rows] == [
        (name, size) for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast") for size in (1000, 2**20)]
    for row in rows:
        assert row["low"] <= row["bus_bytes_per_s"] <= row["high"]
        assert row["bus_bytes_per_s"] == pytest.approx(bus_factor(row["operation"], 2) * row["bytes"] / row["time_s"])
    # A megabyte takes longer than a kilobyte, and not a thousand times as long.
    assert all(large["bus_bytes_per_s"] > small["bus_bytes_per_s"]
               for small, large in zip(rows[::2], rows[1::2], strict=True))
