"""Cases on real ranks: sleeps of known length, and ranks that fail."""

from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import pytest
import torch
import torch.distributed as dist
from support import recording
from support.sleeping_ranks import SleepingRanks
from support.small import WIDTH, TwoLayers, small_case

from charact.analysis.efficiency import flop_utilization as utilization
from charact.analysis.ranks.job_rates import job_rates
from charact.analysis.ranks.scaling import CAUSES, scaling
from charact.core.observer import Observer
from charact.machine.datasheets import Datasheet
from charact.measure.passes.timing import StopRule
from charact.measure.ranks.timed_case import RankTiming, rank_flop, run_rank_cases, time_on_ranks, time_rank
from charact.measure.script.ranks.collectives import enable_flight_recorder
from charact.record.manifest_passes import CollectivesPass
from charact.record.reader import Run
from charact.record.schema import PHASES

RULE = StopRule(0.0, 10, 60.0)


def recorded(out: Path, workload: SleepingRanks, ranks: list[tuple[str | None, int]], *batch_sizes: int) -> Run:
    cases = [replace(small_case("train", batch_size=size, workload=workload), parallel=name, num_ranks=number)
             for size in batch_sizes for name, number in ranks]
    return recording.recorded(out, lambda writer, interrupt: run_rank_cases(
        cases, RULE, 1, writer, Observer(), interrupt))


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1.0, 1.25])
def test_efficiencies_are_those_of_the_sleeps(tmp_path: Path, factor: float) -> None:
    workload = SleepingRanks(sleep_s=0.05, factors=(factor, factor), default_input_size=8)
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
@pytest.mark.parametrize(("changes", "imbalance", "exposed", "slower"), [
    ({"factors": (0.8, 1.2)}, 0.2, 0, 0),
    ({"factors": (1, 1.4)}, 0.2, 0, 0.2),  # shared equally, the work would still take half as long
    ({"factors": (1.25, 1.25)}, 0, 0, 0.25),
    ({"hook_s": 0.05}, 0, 0.25, 0),
    ({"factors": (0.9, 1.3), "hook_s": 0.04}, 0.2, 0.2, 0.1),
])
def test_the_causes_of_a_loss_are_those_of_the_sleeps(tmp_path: Path, changes: Any, imbalance: float, exposed: float,
                                                      slower: float) -> None:
    workload = SleepingRanks(sleep_s=0.05, default_input_size=8, **changes)
    row = scaling(recorded(tmp_path, workload, [(None, 1), ("ddp", 2)], 4)).set_index("kind").loc["weak"]
    lost = imbalance + exposed + slower
    assert row["efficiency"] == pytest.approx(1 / (1 + lost), abs=0.02)
    found = row[list(CAUSES)] / row["time_s"] * (1 + lost)
    assert found.tolist() == pytest.approx([imbalance, exposed, slower, 0], abs=0.03)
    assert row[list(CAUSES)].sum() == pytest.approx(row["lost_s"], abs=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp2"])
def test_every_rank_runs_the_same_iterations(parallel: str) -> None:
    case = replace(small_case("train", batch_size=4), parallel=parallel, num_ranks=2)
    first, second = time_on_ranks(case, StopRule(0.0, 7, 60.0), num_threads=1)
    for timing in (first, second):
        assert timing.facts.num_iterations == 7
        phases = {row["phase"] for row in timing.tables["iterations"]}
        assert phases == set(PHASES)
        assert timing.collectives == CollectivesPass("ok", num_lost=0, backend="gloo")
        assert timing.facts.num_threads == 1
    assert first.num_parameters == second.num_parameters


@pytest.mark.fresh_process  # PyTorch reads the recorder's settings once
@pytest.mark.parametrize("parallel", [None, "ddp"])
def test_a_rank_s_result_passes_through_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallel: str | None
                                             ) -> None:
    """As from its process, which alone is a rank of one."""
    for name, value in flight_recorder_settings().items():
        monkeypatch.setenv(name, value)
    dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{tmp_path}/store")
    try:
        case = replace(small_case("train", batch_size=4), parallel=parallel)
        timing = time_rank(case, StopRule(0.0, 7, 60.0), torch.device("cpu"))
    finally:
        dist.destroy_process_group()
    assert msgspec.json.decode(msgspec.json.encode(timing), type=RankTiming) == timing
    assert {row["iteration"] for row in timing.tables["iterations"]} == set(range(7))
    assert (timing.facts.num_iterations, timing.facts.ended_by) == (7, "max_iterations")
    assert timing.facts.num_warmup_iterations == 5
    assert timing.num_parameters == 512 * WIDTH + WIDTH * 10
    assert timing.collectives.status == ("ok" if parallel else "skipped")
    assert timing.collectives.backend == ("gloo" if parallel else None)
    # DDP exchanges gradients once an iteration.
    assert [row["iteration"] for row in timing.tables["collectives"]] == ([*range(7)] if parallel else [])


def flight_recorder_settings() -> dict[str, str]:
    settings: dict[str, str] = {}
    enable_flight_recorder(settings, 100)
    return settings


@pytest.mark.slow
def test_a_rank_that_fails_fails_its_case(tmp_path: Path) -> None:
    run = recorded(tmp_path, SleepingRanks(failing_rank=1, default_input_size=8), [("ddp", 2), (None, 1)], 4)
    failed, alone = run.entries
    assert (failed.case, failed.status) == ("two_layers-8-b4-train-fp32-cpu-ddpx2", "error")
    assert "is broken in sleeping_ranks.py" in failed.reason
    assert alone.status == "ok"


FLOP = 2 * 4 * 8 * WIDTH + 2 * 4 * WIDTH * 10, 2 * 4 * 8 * WIDTH + 2 * 2 * 4 * WIDTH * 10
"""FLOP of the forward and of the backward of a batch of 4 with 8 features, by hand."""


def test_flop_are_those_of_the_batch_of_one_rank() -> None:
    case = replace(small_case("train", batch_size=4, workload=SleepingRanks(default_input_size=8)),
                   parallel="ddp", num_ranks=2)
    rows, facts = rank_flop(case)
    assert sum(row["flop"] or 0.0 for row in rows) == sum(FLOP)
    assert (facts.status, facts.recomputed_flop) == ("ok", 0.0)
    broken = replace(case, workload=TwoLayers(default_input_size=8, fail_in="forward").prepare())
    rows, facts = rank_flop(broken)
    assert (rows, facts.status, facts.reason) == ([], "failed", "ValueError: the model")


@pytest.mark.slow
def test_utilization_of_ranks_is_that_of_their_sleeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utilization, "datasheet", lambda name: Datasheet({"fp32": 1e9}, 1e9, "by hand"))
    workload = SleepingRanks(sleep_s=0.01, default_input_size=8)
    run = recorded(tmp_path, workload, [("ddp", 2)], 4)
    walls = [median(rows.groupby("iteration")["host_s"].sum()) for _, rows in run.iterations.groupby("case")]
    assert min(walls) >= 0.04
    shares = [sum(FLOP) / wall_s / 1e9 for wall_s in walls]
    assert utilization.flop_utilization(run)["mfu_frac"].tolist() == pytest.approx(shares, rel=0.01)
    assert job_rates(run)["mfu_frac"].tolist() == pytest.approx([sum(shares) / 2], rel=0.01)
