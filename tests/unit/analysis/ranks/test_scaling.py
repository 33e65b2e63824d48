"""Scaling efficiency of known times."""

import io
import random
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support import records

from charact.analysis.common.significance import judged, timed
from charact.analysis.profile.case_summary import iteration_times
from charact.analysis.ranks.scaling import CAUSES, scaling
from charact.record.reader import Run
from charact.views.export.run_summary import run_summary
from charact.views.sections.ranks.scaling import SECTION
from charact.views.summary import summary
from charact.views.terminal.renderer import drawn


def entry(case: str, batch_size: int, num_ranks: int, rank: int, num_iterations: int) -> dict[str, Any]:
    own = {"parallel": "ddp", "rank": rank, "world_size": num_ranks} if num_ranks > 1 else {}
    return records.case_entry("net", 32, "train") | {
        "case": case, "batch_size": batch_size, **own,
        "passes": {"timing": {"status": "ok", "reason": None, "num_iterations": num_iterations}}}


def run_of(out: Path, *cases: tuple[int, int, list[float]], num_iterations: int = 10, noise_frac: float = 0.0) -> Run:
    """A record of (batch size, number of ranks, time of the backward of each rank)."""
    generator, made = random.Random(0), []
    for batch_size, num_ranks, times_s in cases:
        for rank, time_s in enumerate(times_s):
            rows = [{"iteration": number, "phase": phase, "part": None, "host_s": host_s, "device_s": None}
                    for number in range(num_iterations)
                    for phase, host_s in (("forward", 0.01), ("backward", time_s + 1e-5 * (number % 2)
                                                              + noise_frac * time_s * generator.random()))]
            case = entry(f"b{batch_size}x{num_ranks}-rank{rank}", batch_size, num_ranks, rank, num_iterations)
            made.append((case, {"iterations": rows}))
    return records.run_of(out, *made, **records.manifest("profile"))


def test_weak_and_strong(tmp_path: Path) -> None:
    run = run_of(tmp_path, (4, 1, [0.03]), (8, 1, [0.05]), (4, 2, [0.04, 0.035]))
    weak, strong = scaling(run).to_dict("records")
    assert (weak["kind"], weak["num_ranks"], weak["batch_size"], weak["global_batch_size"]) == ("weak", 2, 4, 8)
    assert weak["efficiency"] == pytest.approx(0.04 / 0.05, rel=1e-3)  # the slowest rank counts
    assert (weak["lost_s"], weak["phase"], weak["phase_lost_s"]) == (
        pytest.approx(0.01, rel=1e-2), "backward", pytest.approx(0.01, rel=1e-2))
    assert weak["samples_per_s"] == pytest.approx(8 / 0.05, rel=1e-3)
    assert strong["efficiency"] == pytest.approx(0.06 / 2 / 0.05, rel=1e-3)
    assert strong["lost_s"] == pytest.approx(0.05 - 0.03, rel=1e-2)
    weak, strong = scaling(run_of(tmp_path, (4, 1, [0.03]), (8, 2, [0.04, 0.04]))).to_dict("records")
    assert weak["reason"] == "no single process with this batch: add 1 to --nproc"
    assert strong["reason"].startswith("no single process with the batch of all ranks: add it to --batch-sizes")
    assert weak["time_s"] == pytest.approx(0.05, rel=1e-3)
    weak, _ = scaling(run_of(tmp_path, (4, 1, [0.03]), (4, 2, [0.04, 0.04]), num_iterations=3)).to_dict("records")
    assert weak["efficiency"] == pytest.approx(0.8, rel=1e-3)
    assert weak["low"] is None or weak["low"] != weak["low"]
    assert scaling(run_of(tmp_path, (4, 1, [0.03]))).empty


def test_the_interval_is_that_of_the_ratio_of_times(tmp_path: Path) -> None:
    run = run_of(tmp_path, (4, 1, [0.03]), (8, 1, [0.05]), (4, 2, [0.04, 0.035]), noise_frac=0.1)
    walls = iteration_times(run).pivot_table("wall_s", "iteration", "case")
    ranks = walls[["b4x2-rank0", "b4x2-rank1"]].max(axis=1).tolist()  # the slowest of each iteration
    for scaled, alone, num_ranks in zip(scaling(run).to_dict("records"), ("b4x1-rank0", "b8x1-rank0"), (1, 2),
                                        strict=True):
        ratio = judged(timed(walls[alone].tolist()), timed(ranks))
        assert ratio.low is not None
        assert ratio.high is not None
        assert [scaled[name] * num_ranks for name in ("efficiency", "low", "high")] == pytest.approx(
            [1 / ratio.ratio, 1 / ratio.high, 1 / ratio.low])
        assert scaled["high"] > 1.01 * scaled["low"]


def exchanging(out: Path, num_lost: int = 0) -> Run:
    """A record of a single process and two ranks: the second one works 4 ms longer, and the exchange takes 3 ms."""
    made = [(entry("alone", 4, 1, 0, 10), {"iterations": [
        {"iteration": number, "phase": "backward", "part": None, "host_s": 0.04, "device_s": None}
        for number in range(10)]})]
    for rank, (compute_s, wait_s) in enumerate([(0.042, 0.007), (0.046, 0.003)]):
        of_rank = entry(f"net-rank{rank}", 4, 2, rank, 10)
        of_rank["passes"]["collectives"] = {"status": "ok", "reason": None, "num_lost": num_lost}
        made.append((of_rank, {"iterations": [
            {"iteration": number, "phase": phase, "part": None, "host_s": host_s, "device_s": None}
            for number in range(10) for phase, host_s in (("backward", compute_s), ("communication", wait_s))
        ], "collectives": [
            {"iteration": number, "phase": "backward", "group": "default", "group_size": 2, "sequence": number,
             "operation": "all_reduce", "bytes": 8.0, "start_s": compute_s, "wait_s": wait_s, "exposed_s": wait_s,
             "device_s": None}
            for number in range(10)
        ]}))  # fmt: skip
    return records.run_of(out, *made, **records.manifest("profile"))


def shown(run: Run) -> str:
    console = Console(file=io.StringIO(), width=300)
    console.print(drawn(summary(run)))
    return console.file.getvalue() + str(SECTION.html(run))  # type: ignore[attr-defined]


def test_causes_sum_to_the_lost_time_and_are_shown(tmp_path: Path) -> None:
    run = exchanging(tmp_path)
    weak, _ = scaling(run).to_dict("records")
    assert [weak[name] for name in CAUSES] == pytest.approx([0.002, 0.003, 0.004, 0.0])
    assert sum(weak[name] for name in CAUSES) == pytest.approx(weak["lost_s"]) == pytest.approx(0.009)
    text = shown(run)
    assert "slower compute 4.00 ms, exposed communication 3.00 ms, imbalance 2.00 ms, rest 0 s" in text
    assert "Exposed communication" in text
    cases = run_summary(run)["cases"]
    assert [case["scaling"][0]["imbalance_s"] for case in cases if case.get("scaling")] == pytest.approx([0.002] * 2)
    text = shown(run_of(tmp_path, (4, 1, [0.03]), (4, 2, [0.04, 0.035])))
    assert "n/a (no single process with the batch of all ranks" in text
    assert "weak scaling, ddp, 2 ranks  80.0 %" in text
    assert "batch 4 per rank, 8 in all" in text
    assert "causes n/a (collectives were not recorded: profile it again)" in text


def test_lost_collectives_leave_no_causes(tmp_path: Path) -> None:
    weak, _ = scaling(exchanging(tmp_path, num_lost=3)).to_dict("records")
    assert weak["imbalance_s"] != weak["imbalance_s"]
    assert weak["cause_reason"].startswith("PyTorch’s flight recorder overwrote 6 collectives: set TORCH_FR_BUFFER")
