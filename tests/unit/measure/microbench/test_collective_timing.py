"""Timing all-reduce between processes: two ranks, through gloo."""

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

from charact.execution.out_of_memory import data_growth_limit, is_out_of_memory
from charact.measure.microbench import collective_timing
from charact.measure.microbench.collective_timing import time_over_ranks
from charact.measure.passes.timing import StopRule
from charact.ops import parse_problem
from charact.ops.kinds.all_reduce import KIND

pytestmark = pytest.mark.clock

CPU = torch.device("cpu")
RULE = StopRule(max_iterations=8, max_seconds=2.0)


def test_each_rank_warms_up_its_device_before_it_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    prepared = KIND.prepare(parse_problem("all_reduce:100x2"), "forward", "fp32", CPU)
    monkeypatch.setattr(collective_timing, "warm_device", calls.append)
    monkeypatch.setattr(collective_timing, "repetition", lambda *_, **__: calls.append("timed") or (1e-3, None))
    dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{tmp_path}/store")
    try:
        task = collective_timing._Task(str(tmp_path), "all_reduce:100x2", "fp32", "cpu", 1, 1, False, RULE)
        timing = collective_timing._timed(prepared, CPU, task)
    finally:
        dist.destroy_process_group()
    assert calls[0] == CPU
    assert calls.count(CPU) == 1
    assert calls.count("timed") > len(timing.rows)


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
from charact.measure.microbench.collective_timing import time_over_ranks
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
