"""Cases on real ranks: sleeps of known length, and ranks that fail."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.sleeping_ranks import SleepingRanks
from support.small import small_case

from charact.analysis.ranks.scaling import scaling
from charact.core.observer import Observer
from charact.execution.interrupt import Interrupt
from charact.measure.passes.timing import StopRule
from charact.measure.ranks.runner import run_rank_cases
from charact.measure.ranks.timed_case import time_on_ranks
from charact.record.reader import Run, load_run
from charact.record.writer import RunWriter

RULE = StopRule(0.0, 10, 60.0)


def recorded(out: Path, workload: SleepingRanks, ranks: list[tuple[str | None, int]], *batch_sizes: int) -> Run:
    cases = [replace(small_case("train", batch_size=size, workload=workload), parallel=name, num_ranks=number)
             for size in batch_sizes for name, number in ranks]
    writer = RunWriter(out, "ranks", {})
    with Interrupt() as interrupt:
        run_rank_cases(cases, RULE, 1, writer, Observer(), interrupt)
    writer.close("complete")
    return load_run(writer.publish())


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1.0, 1.25])
def test_efficiencies_are_those_of_the_sleeps(tmp_path: Path, factor: float) -> None:
    workload = SleepingRanks(sleep_s=0.05, several_factor=factor, default_input_size=8)
    found = scaling(recorded(tmp_path, workload, [(None, 1), ("ddp", 2)], 4, 8)).set_index(["kind", "batch_size"])
    for place in (("weak", 4), ("weak", 8), ("strong", 4)):
        row = found.loc[place]
        assert row["efficiency"] == pytest.approx(1 / factor, abs=0.05)  # an exchange takes time, too
        assert row["low"] <= row["efficiency"] <= row["high"]
    if factor > 1:
        assert found.loc[("weak", 8), "phase"] == "forward"
        assert found.loc[("weak", 8), "phase_lost_s"] == pytest.approx(0.05 * 8 * 0.25, rel=0.1)
    assert found.loc[("strong", 8), "reason"].startswith("no single process with the batch of all ranks")


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp2"])
def test_every_rank_runs_the_same_iterations(parallel: str) -> None:
    case = replace(small_case("train", batch_size=4), parallel=parallel, num_ranks=2)
    first, second = time_on_ranks(case, StopRule(0.0, 7, 60.0), num_threads=1)
    for timing in (first, second):
        assert timing.facts["num_iterations"] == 7
        assert {row["phase"] for row in timing.rows} >= {"data", "forward", "loss", "backward", "update", "other"}
        assert timing.facts["num_threads"] == 1
    assert first.num_parameters == second.num_parameters


@pytest.mark.slow
def test_a_rank_that_fails_fails_its_case(tmp_path: Path) -> None:
    run = recorded(tmp_path, SleepingRanks(failing_rank=1, default_input_size=8), [("ddp", 2), (None, 1)], 4)
    failed, alone = run.manifest["cases"]
    assert (failed["case"], failed["status"]) == ("two_layers-8-b4-train-fp32-cpu-ddpx2", "error")
    assert "is broken in sleeping_ranks.py" in failed["reason"]
    assert alone["status"] == "ok"
