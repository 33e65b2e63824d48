"""Collectives between two ranks, through gloo: the timing of all-reduce, and the bandwidth of each."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from charact.core.bus_bandwidth import bus_factor
from charact.execution.out_of_memory import data_growth_limit, is_out_of_memory
from charact.machine.ceilings_cache import (
    CachedCollectives,
    NotCached,
    best_collectives,
    cache_ceilings,
    collectives_file,
    read_cached,
)
from charact.measure.microbench import collectives
from charact.measure.microbench.collectives import collective_ceiling, measure_collectives, time_over_ranks
from charact.measure.passes.timing import StopRule
from charact.ops import parse_problem
from charact.ops.kinds.all_reduce import KIND

pytestmark = pytest.mark.clock

CPU = torch.device("cpu")
RULE = StopRule(max_iterations=8, max_seconds=2.0)


def test_each_rank_warms_up_its_device_before_it_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(collectives, "warm_device", calls.append)
    monkeypatch.setattr(collectives, "repetition", lambda *_, **__: calls.append("timed") or (1e-3, None))
    dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{tmp_path}/store")
    try:
        result = collectives._timed_all_reduce("all_reduce:100x2", "fp32", RULE, False, CPU)
    finally:
        dist.destroy_process_group()
    assert calls[0] == CPU
    assert calls.count(CPU) == 1
    assert calls.count("timed") > len(result.rows)


@pytest.mark.slow
def test_two_ranks_agree_on_the_sum_and_on_the_times() -> None:
    timing, error = time_over_ranks("all_reduce:20000x2", "fp32", CPU, RULE, hot=False)
    # Sums of two random numbers are exact or are rounded once: not all of 20 000 are exact.
    assert 0 < error <= 2.0**-24
    assert [row["repetition"] for row in timing.rows] == list(range(timing.facts.num_repetitions))
    assert 6 <= len(timing.rows) <= 8
    assert all(row["host_s"] > 0 and row["device_s"] is None and row["num_calls"] >= 1 for row in timing.rows)
    assert (timing.facts.num_ranks, timing.facts.backend) == (2, "gloo")
    assert timing.facts.ended_by in ("max_iterations", "precision", "max_seconds")
    assert timing.facts.inputs_bytes == 80_000
    assert timing.facts.num_inputs > 1


@pytest.mark.slow
def test_a_rank_that_runs_out_of_memory_is_told_as_such() -> None:
    with data_growth_limit(2**28), pytest.raises(RuntimeError, match=r"^rank [01]: ") as caught:
        time_over_ranks("all_reduce:1000000000x2", "fp32", CPU, RULE, hot=True)
    assert is_out_of_memory(caught.value)
    assert "\n" not in str(caught.value)


def test_the_tolerance_leaves_room_for_rounding_only() -> None:
    prepared = KIND.prepare(parse_problem("all_reduce:10x2"), "forward", "bf16", CPU)
    assert 2.0**-8 < prepared.tolerance < 2.0**-4


ENDLESS = """
import torch
from charact.measure.microbench.collectives import time_over_ranks
from charact.measure.passes.timing import StopRule
try:
    time_over_ranks("all_reduce:1000x2", "fp32", torch.device("cpu"), StopRule(0.0, 10**9, 600.0), hot=True)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.slow
@pytest.mark.parametrize("waited_s", [
    0.0, pytest.param(6.0, marks=pytest.mark.slow)])  # while the ranks import, and most likely while they exchange
def test_ctrl_c_ends_the_ranks_without_a_word(waited_s: float) -> None:
    program = subprocess.Popen([sys.executable, "-c", ENDLESS], start_new_session=True, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    ranks: list[psutil.Process] = []
    while len(ranks) < 2:
        assert program.poll() is None
        time.sleep(0.05)
        ranks = [child for child in psutil.Process(program.pid).children() if "spawn_main" in " ".join(child.cmdline())]
    time.sleep(waited_s)
    os.killpg(program.pid, signal.SIGINT)
    assert program.communicate(timeout=60) == ("interrupted\n", "")
    assert psutil.wait_procs(ranks, timeout=10)[1] == []


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
    cache_ceilings(path, CachedCollectives("gloo", 2, [slow, fast], {"reduce_scatter": "not supported"}))
    found = best_collectives("machine", "2.13", [(2, "gloo"), (4, "gloo"), (2, "nccl")])
    assert found["collective_ceilings"] == [{"backend": "gloo", "num_ranks": 2, **fast}]
    assert found["collective_ceilings_reason"] == (
        "collectives of 4 ranks (gloo): they were not measured yet; charact doctor --ceilings --nproc 4 measures them; "
        "collectives of 2 ranks (nccl): they were not measured yet; charact doctor --ceilings --nproc 2 measures them")
    path.write_text(path.read_text().replace('"num_ranks": 2', '"num_ranks": "two"'))
    with pytest.raises(NotCached, match="is damaged"):
        read_cached(path, CachedCollectives)


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
