"""Who waits for whom, from records of known times."""

import math
import random
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.judged import ceilings_of, operator
from support.rank_records import NUM_BYTES, TRANSFER_S, WORK_S, Work, slow, write_ranks

from charact.analysis.efficiency.bottleneck import bottlenecks
from charact.analysis.efficiency.time_bounds import time_limits
from charact.analysis.ranks.collectives import collective_summary
from charact.analysis.ranks.matching import matched_iterations, mismatches
from charact.analysis.ranks.stragglers import stragglers
from charact.analysis.ranks.waiting import waiting_matrix, waits
from charact.record.reader import Run, load_run
from charact.record.tables import frame_of
from charact.views.sections.ranks.collectives import SECTION


def ranks(tmp_path: Path, *arguments: Any, **named: Any) -> Run:
    return load_run(write_ranks(tmp_path, *arguments, **named))


def verdict(run: Run) -> Any:
    (found,) = stragglers(run).itertuples(index=False)
    return found


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("phase", ["data", "forward", "loss", "backward"])
def test_a_straggler_is_named_with_its_phase_and_what_it_costs(phase: str, world_size: int, tmp_path: Path) -> None:
    found = verdict(ranks(tmp_path, slow(1, phase, 0.05), world_size=world_size))
    assert (found.verdict, found.rank, found.phase) == ("straggler", 1, phase)
    assert found.extra_s == pytest.approx(0.05)
    assert found.wait_s == pytest.approx(0.05)
    whole_s = sum(WORK_S.values()) + TRANSFER_S + 0.05
    assert found.share_frac == pytest.approx(0.05 / whole_s)
    assert f"rank 1’s {phase} takes 50.0 ms longer" in found.evidence
    assert found.evidence.endswith(
        f"the others wait 50.0 ms ({5 / whole_s:.1f} % of the iteration) for it, most at the all_reduce in backward")
    assert ("speed up loading on rank 1" in found.advice) == (phase == "data")
    assert (found.threshold_frac, found.num_iterations, found.reason) == (0.1, 10, None)


def test_balanced_ranks(tmp_path: Path) -> None:
    found = verdict(ranks(tmp_path, lambda rank, iteration: {}))
    assert (found.verdict, found.wait_s, found.share_frac) == ("balanced", 0, 0)
    found = verdict(ranks(tmp_path, slow(1, "forward", 0.003)))
    assert (found.verdict, found.wait_s, math.isnan(found.extra_s)) == ("balanced", pytest.approx(0.003), True)
    assert f"for {100 * 0.003 / 0.041:.1f} % of the iteration; from 10.0 % on" in found.evidence


@pytest.mark.parametrize("seed", range(6))
def test_ranks_that_a_busy_machine_delays_at_random_are_balanced(seed: int, tmp_path: Path) -> None:
    chosen = random.Random(seed)
    noise_s = {(rank, number, phase): chosen.expovariate(1 / 0.002) for rank in range(3) for number in range(14)
               for phase in WORK_S}
    run = ranks(tmp_path, lambda rank, number: {phase: noise_s[rank, number, phase] for phase in WORK_S},
                world_size=3, num_iterations=14)
    assert verdict(run).verdict == "balanced"


def test_stragglers_that_rotate_are_no_single_rank(tmp_path: Path) -> None:
    def turns(rank: int, iteration: int) -> dict[str, float]:
        return {"data": 0.04} if iteration % 3 == rank else {}

    found = verdict(ranks(tmp_path, turns, world_size=3, num_iterations=12))
    assert (found.verdict, found.phase) == ("rotating stragglers", "data")
    assert pd.isna(found.rank)
    assert (found.wait_s, found.extra_s, found.threshold_frac) == (pytest.approx(0.04), pytest.approx(0.04), 0.2)
    assert "0 in 33.3 %, rank 1 in 33.3 %, rank 2 in 33.3 %), and differs most in data; the ranks" in found.evidence
    assert f"wait 40.0 ms for each other: {4 / 0.078:.1f} % of" in found.evidence
    assert "equally long to load" in found.advice
    shorter = verdict(ranks(tmp_path, lambda rank, iteration: {"forward": 0.008 * (iteration % 3 == rank)},
                            world_size=3, num_iterations=12))
    assert (shorter.verdict, shorter.wait_s) == ("balanced", pytest.approx(0.008))
    assert f"for {0.8 / 0.046:.1f} % of the iteration, but no rank and no phase" in shorter.evidence


def test_lasting_differences_without_one_straggler_are_an_imbalance(tmp_path: Path) -> None:
    def shared(rank: int, iteration: int) -> dict[str, float]:
        return {"forward": 0.0 if rank == 0 else 0.03 + 0.002 * (iteration % 2 == rank % 2)}

    found = verdict(ranks(tmp_path, shared, world_size=3, num_iterations=12))
    assert (found.verdict, found.phase) == ("imbalance", "forward")
    assert found.rank in (1, 2)
    assert (found.extra_s, found.wait_s) == (pytest.approx(0.031), pytest.approx(0.017))  # 32 and 2 ms, over 2 ranks
    assert re.search("rank [12] works 31.0 ms longer in each iteration than rank 0, most of it in forward; the ranks "
                     "wait 17.0 ms", found.evidence)


def test_a_rank_that_others_wait_for_without_more_work_is_no_straggler(tmp_path: Path) -> None:
    def work(rank: int, iteration: int) -> dict[str, float]:
        return {"forward": 0.05} if rank == 1 else {"update": 0.05}  # after the exchange: nobody waits for it

    found = verdict(ranks(tmp_path, work, world_size=3))
    assert found.wait_s == pytest.approx(0.05)
    assert found.verdict not in ("straggler", "imbalance")


def test_the_waiting_matrix_and_collectives(tmp_path: Path) -> None:
    def work(rank: int, iteration: int) -> dict[str, float]:
        return {"forward": {0: 0.0, 1: 0.01, 2: 0.03}[rank]}

    matrix = waiting_matrix(ranks(tmp_path, work, world_size=3)).set_index(["rank", "for_rank"])["wait_s"]
    assert matrix[0, 2] == pytest.approx(0.03)
    assert matrix[1, 2] == pytest.approx(0.02)
    assert matrix.drop([(0, 2), (1, 2)]).eq(0).all()
    found = collective_summary(ranks(tmp_path)).set_index("rank")
    assert list(found["num_calls"]) == [1, 1]
    assert list(found["bytes"]) == [NUM_BYTES, NUM_BYTES]
    assert found.loc[0, "late_s"] == pytest.approx(0.06)
    assert found.loc[1, "late_s"] == pytest.approx(0)
    assert found.loc[0, "exposed_s"] == pytest.approx(0.06 + TRANSFER_S)
    assert found.loc[0, "bus_bytes_per_s"] == pytest.approx(NUM_BYTES / TRANSFER_S)  # 2 (n-1)/n = 1
    run = ranks(tmp_path)
    rare = run.table("collectives")
    rare = rare[rare["iteration"] == 0].assign(operation="broadcast", sequence=99)
    run._tables["collectives"] = pd.concat([run.table("collectives"), rare], ignore_index=True)
    found = collective_summary(run).set_index(["rank", "operation"])
    assert found.loc[(0, "broadcast"), "num_calls"] == pytest.approx(0.1)
    assert found.loc[(0, "broadcast"), "late_s"] == pytest.approx(0.006)  # 60 ms in one of 10 iterations
    assert found.loc[(0, "broadcast"), "bus_bytes_per_s"] == pytest.approx(NUM_BYTES / TRANSFER_S)  # 1, not (n-1)/n


def best(num_ranks: int, rate: float) -> dict[str, Any]:
    return {"collective_ceilings": [{"backend": "gloo", "num_ranks": num_ranks, "operation": "all_reduce",
                                     "bytes": 2**20, "bus_bytes_per_s": rate}]}


def test_the_bandwidth_is_a_share_of_the_best_that_was_measured_between_as_many_ranks(tmp_path: Path) -> None:
    run = ranks(tmp_path, world_size=4, collective_ceilings=best(4, 12e9))
    found = collective_summary(run)
    # 1.5 times 4 MB in 2 ms are 3 GB/s, a quarter of 12 GB/s.
    assert list(found["of_best_frac"]) == pytest.approx([0.25] * 4)
    assert set(found["of_best_reason"]) == {None}
    shown = SECTION.html(run).blocks[0].table
    assert shown is not None
    (place,) = (number for number, column in enumerate(shown.columns) if column.title == "Of best measured")
    assert {row.cells[place].text for row in shown.rows} == {"25.0 %"}


@pytest.mark.parametrize(("facts", "reason"), [
    ({}, "not measured: charact doctor --ceilings --nproc 2, then measure again"),
    (best(4, 12e9) | {"collective_ceilings_reason": "of 2 ranks: not yet"}, "of 2 ranks: not yet"),
    ({"collective_ceilings": [{**best(2, 1.0)["collective_ceilings"][0], "operation": "broadcast"}]},
     "the bandwidth of all_reduce is not measured"),
    ({"hosts": ["node0", "node1"]}, "the ranks ran on several machines, the best is measured on one"),
])
def test_without_a_best_bandwidth_the_reason_and_the_remedy_are_there(facts: dict[str, Any], reason: str,
                                                                     tmp_path: Path) -> None:
    hosts = facts.pop("hosts", None)
    run = ranks(tmp_path, collective_ceilings=facts)
    for entry, host in zip(run.manifest["cases"], hosts or (), strict=False):
        entry["hostname"] = host
    found = collective_summary(run)
    assert found["of_best_frac"].isna().all()
    assert set(found["of_best_reason"]) == {reason}


@pytest.mark.parametrize(("named", "reason"), [
    ({"late": {1: 1}}, "in 10 of 10 iterations the ranks called different collectives"),
    ({"late": {1: 1}, "world_size": 3}, "in 10 of 10 iterations the ranks called different collectives"),
    ({"sizes": {1: 3}}, "the ranks have different world sizes (2, 3)"),
    ({"num_iterations": 4}, "4 iterations are too few"),
])  # fmt: skip
def test_ranks_that_cannot_be_compared_have_no_verdict(named: dict[str, Any], reason: str, tmp_path: Path) -> None:
    found = verdict(ranks(tmp_path, **named))
    assert pd.isna(found.verdict)
    assert reason in found.reason


def test_iterations_are_matched_by_their_index_in_the_program(tmp_path: Path) -> None:
    found = matched_iterations(ranks(tmp_path))
    assert (found["iteration"] == found["own_iteration"] + 2).all()
    assert mismatches(ranks(tmp_path)).empty
    run = ranks(tmp_path, slow(1, "forward", 0.05), with_collectives=False)
    found = verdict(run)
    assert (found.verdict, found.rank, found.phase) == ("straggler", 1, "forward")
    assert found.wait_s == pytest.approx(0.05)
    assert waits(run)["operation"].isna().all()


@pytest.mark.parametrize(("work", "rank", "expected"), [
    (slow(1, "backward", 0.06), 0, "straggler-bound"),  # it waits for rank 1
    (lambda rank, iteration: {}, 0, "balanced"),
])  # fmt: skip
def test_a_rank_that_waits_for_another_is_not_told_to_communicate_less(work: Work, rank: int, expected: str,
                                                                       tmp_path: Path) -> None:
    found = bottlenecks(ranks(tmp_path, work)).iloc[rank]
    if expected == "straggler-bound":
        assert found["verdict"] == expected
        assert "rank 1’s backward takes 60.0 ms longer" in found["evidence"]
        assert "communicate less" not in found["advice"]
        assert found["prize_s"] == pytest.approx(0.06, rel=0.01)
    else:
        assert found["verdict"] != "communication-bound"


def test_a_rank_that_waits_less_than_it_computes_is_told_of_the_straggler_too(tmp_path: Path) -> None:
    run = ranks(tmp_path, slow(1, "backward", 0.02))
    case = run.manifest["cases"][0]
    case["passes"]["operators"] = {"status": "ok", "reason": None, "num_iterations": 3, "iteration_s": 0.1,
                                   "phase_s": WORK_S}
    case["precision"] = "fp32"
    run.manifest["ceilings"] = ceilings_of("cpu")
    work = [operator(phase, "GEMM", WORK_S[phase], flop=4e11 * WORK_S[phase], num_bytes=1.0, num_calls=0)
            for phase in ("forward", "backward")]
    for table in ("operators", "flop"):
        run._tables[table] = frame_of(table, [{"case": case["case"]} | row for row in work])
    found = bottlenecks(run).iloc[0]
    assert found["verdict"] == "compute-bound"
    assert "; for communication: " in found["advice"]
    assert "communicate less" not in found["advice"]


def test_exchange_under_the_profiler_is_not_counted_in_a_phase_again(tmp_path: Path) -> None:
    run = ranks(tmp_path, lambda rank, iteration: {})
    case = run.manifest["cases"][0]
    case["passes"]["operators"] = {"status": "ok", "reason": None, "num_iterations": 3, "iteration_s": 0.1,
                                   "phase_s": {"backward": 0.075}}
    times_s = {"aten::mm": ("GEMM", 0.02), "gloo:all_reduce": ("communication", 0.05)}
    run._tables["operators"] = frame_of("operators", [
        {"case": case["case"], "phase": "backward", "operator": name, "operator_type": kind, "num_calls": 1.0,
         "self_host_s": self_s} for name, (kind, self_s) in times_s.items()])
    limits = time_limits(run).query("case == @case['case']").set_index("limit")["time_s"]
    assert limits["communication"] == pytest.approx(TRANSFER_S)  # the phase alone
    assert limits.sum() == pytest.approx(sum(WORK_S.values()) + TRANSFER_S)
    # The backward takes 75 ms under the profiler, and waits for 50 ms of it: 20 of the other 25 ms are the product.
    assert limits["host"] == pytest.approx(WORK_S["backward"] * 5 / 25)
