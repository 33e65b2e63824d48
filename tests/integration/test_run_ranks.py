"""`charact run` in every rank of a program: one record, with each rank's phases and collectives."""

import random
import re
import socket
import sys
import time
from pathlib import Path

import pandas as pd
import psutil
import pytest
from support.forked import Server, hidden, published
from support.ranks import SCRIPT, only_record, run_ranks, start_ranks

from charact.analysis.ranks.collectives import collective_summary
from charact.analysis.ranks.stragglers import stragglers
from charact.cli import run as charact
from charact.record.reader import Run

WIDTH, CLASSES = 128, 10
BLOCKS = {"first": WIDTH * WIDTH + WIDTH, "second": WIDTH * WIDTH + WIDTH, "last": WIDTH * CLASSES + CLASSES}
"""Number of parameters of each block of the model."""
PARAMETERS = sum(BLOCKS.values())
BASE_S = 0.04
FLUSHED_S = 0.25
"""Interval at which a rank writes its event log."""


def phases_s(run: Run) -> pd.DataFrame:
    """Median time of each phase by rank."""
    ranks = {entry.case: entry.rank for entry in run.entries}
    rows = run.iterations.assign(rank=run.iterations["case"].map(ranks))
    return rows.pivot_table(index="rank", columns="phase", values="host_s", aggfunc="median")


@pytest.mark.clock
def test_all_ranks_have_one_record_with_the_phases_and_collectives_of_each(tmp_path: Path, server: Server) -> None:
    run = run_ranks(server, tmp_path, "--seconds", 0.05, "--iterations", 10)
    assert [(entry.case, entry.rank, entry.local_rank, entry.world_size) for entry in run.entries] == [
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
    (row,) = run.manifest["collective_ceilings"]  # those that the tests' cache holds
    assert (row["backend"], row["num_ranks"], row["operation"]) == ("gloo", 2, "all_reduce")
    found = collective_summary(run)
    assert list(found["of_best_frac"]) == list(found["bus_bytes_per_s"] / row["bus_bytes_per_s"])
    assert found["of_best_frac"].gt(0).all()
    sequences = collectives.groupby(["case", "iteration"])["sequence"].agg(list).unstack("case")
    assert (sequences["ranks-train-rank0"] == sequences["ranks-train-rank1"]).all()


@pytest.mark.slow
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


STRAGGLERS = [
    (parallel, phase, world_size, slow) for parallel in ("ddp", "fsdp2")
    for phase in ("data", "forward", "loss", "backward", "update") for world_size, slow in ((2, 1), (3, 0))
]  # fmt: skip
QUICK = {("fsdp2", "backward", 2, 1)}


@pytest.mark.clock
@pytest.mark.parametrize(("parallel", "phase", "world_size", "slow"), [
    one if one in QUICK else pytest.param(*one, marks=pytest.mark.slow) for one in STRAGGLERS])
def test_the_rank_that_sleeps_is_named_with_its_phase(parallel: str, phase: str, world_size: int, slow: int,
                                                      tmp_path: Path, server: Server) -> None:
    run = run_ranks(server, tmp_path, "--parallel", parallel, "--sleep", phase, "--seconds", 0.06, "--slow", slow,
                    "--base", 0.04, "--iterations", 10, world_size=world_size)
    (found,) = stragglers(run).itertuples(index=False)
    assert (found.verdict, found.rank, found.phase) == ("straggler", slow, phase), found.evidence
    assert found.wait_s == pytest.approx(0.06, rel=0.15)
    assert found.extra_s == pytest.approx(0.06, rel=0.15)


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


def test_ranks_that_hang_say_where_and_in_what_they_wait(tmp_path: Path, server: Server) -> None:
    children = start_ranks(server, tmp_path, "--iterations", 30, "--hang-at", 20, "--base", BASE_S,
                           options=("--hang-after", "1"))
    until = time.monotonic() + 60
    while not all("no progress" in child.error() for child in children) and time.monotonic() < until:
        time.sleep(0.1)
    for child in children:
        child.kill()
        child.wait()
    waiting, hanging = (child.error() for child in children)
    assert "rank 0 on " in waiting
    assert re.search(r"no progress for 1 s: in backward at .* waiting in all_reduce \d+ of group default$",
                     waiting.strip())
    assert re.search(r"rank 1 on .*: no progress for 1 s: outside of all phases at ranks.py:\d+ \(main\)$",
                     hanging.strip())
    (job,) = hidden(tmp_path / "runs")
    assert charact(["recover", "-q", str(job)]) == 0
    first, second = only_record(tmp_path).manifest["ranks"]
    assert "waiting in all_reduce" in first["hung"]
    assert "outside of all phases" in second["hung"]


NUM_KILLS, ITERATION_S, ENDED_WITHIN_S = 25, 0.03, 15


def kill_one(victim: str, seed: int, cwd: Path) -> tuple[str, int, float]:
    """Start two ranks, kill the process that started them or one rank at a random moment, and read what is left.

    Returns:
        What became of the record, the most iterations that a rank had finished and lost, and the time in which all
        processes had ended.
    """
    chosen = random.Random(f"{victim}-{seed}")
    (cwd / "finished").mkdir(parents=True)
    with (cwd / "output").open("w") as output:
        agent = psutil.Popen([sys.executable, "-m", "charact", "run", "--quiet", "--nproc", "2", "--skip", "0",
                              "--passes", "timing", SCRIPT, "--iterations", "100", "--base", str(ITERATION_S),
                              "--finished", "finished"], cwd=cwd, stdout=output, stderr=output)
    time.sleep(chosen.uniform(0.5, 10.0))
    processes = [agent, *(agent.children(recursive=True) if agent.is_running() else [])]
    ranks = [one for one in processes[1:] if "--finished" in " ".join(one.cmdline())]
    if victim == "agent" or not ranks:
        agent.kill()
    else:
        chosen.choice(ranks).kill()
    begun = time.monotonic()
    assert psutil.wait_procs(processes, timeout=ENDED_WITHIN_S)[1] == []
    ended_s = time.monotonic() - begun
    finished = {int(path.name): path.stat().st_size for path in (cwd / "finished").iterdir()}
    until = time.monotonic() + 20
    while hidden(cwd / "runs") and time.monotonic() < until:  # ranks that ended in order merge their parts
        time.sleep(0.1)
    became = "merged"
    for job in hidden(cwd / "runs"):
        became = "recovered"
        if charact(["recover", "-q", str(job)]) == 2:  # no rank had written an iteration
            assert max(finished.values(), default=0) <= 2 + FLUSHED_S / ITERATION_S
    if not published(cwd / "runs"):
        return "nothing", max(finished.values(), default=0), ended_s
    recorded = {one["rank"]: one["num_iterations"] for one in only_record(cwd).manifest["ranks"]}
    return became, max(finished[rank] - recorded.get(rank, 0) for rank in finished), ended_s


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["agent", "rank"])
def test_kills_at_random_moments_lose_only_the_last_flush_and_leave_no_rank_behind(victim: str, tmp_path: Path) -> None:
    found = pd.DataFrame([kill_one(victim, number, tmp_path / str(number)) for number in range(NUM_KILLS)],
                         columns=["became", "num_lost", "ended_s"])
    print(victim, found["became"].value_counts().to_dict(), found["num_lost"].max(), found["ended_s"].max())
    assert found["num_lost"].max() <= 2 + FLUSHED_S / ITERATION_S
    assert (found["became"] != "nothing").sum() >= NUM_KILLS / 5


FULL_DISK = """
import resource, time, torch
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=.1)
for number in range(1200):
    if number == 500:
        time.sleep(0.3)  # the event log is written at intervals
    if number == 600 and dist.get_rank() == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3_000, resource.RLIM_INFINITY))
    torch.nn.functional.mse_loss(model(torch.ones(4, 4)), torch.ones(4, 4)).backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_rank_whose_disk_is_full_is_named_and_what_the_others_finished_is_kept(tmp_path: Path, server: Server
                                                                               ) -> None:
    path = tmp_path / "full.py"
    path.write_text(FULL_DISK, encoding="utf-8")
    children = start_ranks(server, tmp_path, script=path)
    ended = [child.wait() for child in children]
    assert [one.status for one in ended] == [0, 0]
    assert re.search(r"charact: rank 1 on .*: stopped measuring: no space left while writing ", ended[1].error)
    run = only_record(tmp_path)
    assert run.manifest["ending"] == "rank 1: stopped measuring: no space left"
    first, second = run.manifest["ranks"]
    assert first["ending"] == "to its end"
    assert first["num_iterations"] > 1000
    assert 400 < second["num_iterations"] < 700


def test_a_port_that_is_taken_is_one_line_with_the_remedy(tmp_path: Path, server: Server) -> None:
    path = tmp_path / "taken.py"
    path.write_text("import torch.distributed as dist\ndist.init_process_group('gloo')\n", encoding="utf-8")
    with socket.socket() as listening:
        listening.bind(("", 0))
        listening.listen()
        port = listening.getsockname()[1]
        done = server.start("run", path, cwd=tmp_path, RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                            MASTER_PORT=str(port)).wait()
    assert done.status == 1
    assert f"charact: another program uses port {port}: choose another MASTER_PORT" in done.error
