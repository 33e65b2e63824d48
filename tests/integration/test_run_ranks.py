"""`charact run` in every rank of a program: one record, with each rank's phases and collectives."""

import signal
import time
from pathlib import Path

import pandas as pd
import pytest
from support.forked import Server, hidden
from support.ranks import only_record, run_ranks, start_ranks

from charact.cli import run as charact
from charact.record.reader import Run

WIDTH, CLASSES = 128, 10
BLOCKS = {"first": WIDTH * WIDTH + WIDTH, "second": WIDTH * WIDTH + WIDTH, "last": WIDTH * CLASSES + CLASSES}
"""Number of parameters of each block of the model."""
PARAMETERS = sum(BLOCKS.values())


def phases_s(run: Run) -> pd.DataFrame:
    """Median time of each phase by rank."""
    ranks = {case["case"]: case["rank"] for case in run.manifest["cases"]}
    rows = run.iterations.assign(rank=run.iterations["case"].map(ranks))
    return rows.pivot_table(index="rank", columns="phase", values="host_s", aggfunc="median")


@pytest.mark.clock
def test_all_ranks_have_one_record_with_the_phases_and_collectives_of_each(tmp_path: Path, server: Server) -> None:
    run = run_ranks(server, tmp_path, "--seconds", 0.05, "--iterations", 10)
    assert [(case["case"], case["rank"], case["local_rank"], case["world_size"]) for case in run.manifest["cases"]] == [
        ("ranks-train-rank0", 0, 0, 2), ("ranks-train-rank1", 1, 1, 2)]
    assert [(one["rank"], one["num_iterations"], one["ending"]) for one in run.manifest["ranks"]] == [
        (0, 8, "to its end"), (1, 8, "to its end")]
    assert (run.manifest["world_size"], run.manifest["status"]) == (2, "complete")
    median_s = phases_s(run)
    # Rank 1 sleeps in its backward, and rank 0 waits for that, which is not its own backward.
    assert median_s.loc[1, "backward"] >= 0.05
    assert median_s.loc[0, "backward"] < 0.02
    assert median_s.loc[0, "communication"] == pytest.approx(0.05, abs=0.01)
    assert median_s.loc[1, "communication"] < 0.02
    # One all-reduce a bucket: the sums of their bytes are the gradients.
    collectives = run.table("collectives")
    assert set(collectives["operation"]) == {"all_reduce"}
    assert set(collectives["phase"]) == {"backward"}
    assert set(collectives.groupby(["case", "iteration"])["bytes"].sum()) == {4 * PARAMETERS}
    sequences = collectives.groupby(["case", "iteration"])["sequence"].agg(list).unstack("case")
    assert (sequences["ranks-train-rank0"] == sequences["ranks-train-rank1"]).all()


@pytest.mark.clock
def test_fsdp2_gathers_and_reduces_each_block(tmp_path: Path, server: Server) -> None:
    run = run_ranks(server, tmp_path, "--parallel", "fsdp2", "--sleep", "forward", "--seconds", 0.05,
                    "--iterations", 8)
    collectives = run.table("collectives")
    whole = sorted(4 * number for number in BLOCKS.values())
    for _, rows in collectives.groupby(["case", "iteration"]):
        counts = {(phase, operation): sorted(some["bytes"]) for (phase, operation), some
                  in rows.groupby(["phase", "operation"])}
        # The root gathers its parameters for the forward and keeps them; there are none outside of the blocks.
        assert counts == {("forward", "all_gather"): whole, ("backward", "all_gather"): whole,
                          ("backward", "all_reduce"): whole}
    median_s = phases_s(run)
    assert median_s.loc[1, "forward"] >= 0.05
    assert median_s.loc[0, "communication"] - median_s.loc[1, "communication"] == pytest.approx(0.05, abs=0.015)


def test_with_batch_norm_the_wait_is_in_the_broadcast_of_the_forward(tmp_path: Path, server: Server) -> None:
    run = run_ranks(server, tmp_path, "--normalize", "--sleep", "data", "--seconds", 0.05, "--iterations", 8)
    rows = run.table("collectives").query("case == 'ranks-train-rank0'")
    exposed_s = rows.groupby(["phase", "operation"])["exposed_s"].sum() / rows["iteration"].nunique()
    assert exposed_s["forward", "broadcast"] > 0.045
    assert exposed_s["backward", "all_reduce"] < 0.025


def test_a_rank_that_fails_is_named_with_its_traceback_and_the_others_are_kept(tmp_path: Path, server: Server) -> None:
    children = start_ranks(server, tmp_path, "--iterations", 20, "--fail-at", 10)
    begun = time.monotonic()
    statuses = [child.wait().status for child in children]
    run = only_record(tmp_path)
    assert time.monotonic() - begun < 30
    assert statuses[1] == 1
    assert run.manifest["ending"] == "rank 1: ValueError: bad batch"
    first, second = run.manifest["ranks"]
    assert "raise ValueError" in second["traceback"]
    assert first["num_iterations"] >= 7
    assert second["num_iterations"] >= 7


@pytest.mark.slow
def test_a_killed_rank_loses_nothing_that_had_finished(tmp_path: Path, server: Server) -> None:
    children = start_ranks(server, tmp_path, "--iterations", 20, "--hang-at", 12)
    time.sleep(6)
    children[1].kill()
    children[1].wait()
    children[0].kill(signal.SIGTERM)
    children[0].wait()
    (job,) = hidden(tmp_path / "runs") or [None]
    if job is not None:  # both were killed: the next reader merges
        assert charact(["show", str(job)]) == 0
    run = only_record(tmp_path)
    assert [one["num_iterations"] for one in run.manifest["ranks"]] >= [8, 8]
    assert run.manifest["ranks"][1]["ending"] == "killed"
