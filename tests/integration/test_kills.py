"""Commands that are killed at random moments: what their records had flushed is in the run that `recover` makes."""

import random
import re
import time
from pathlib import Path

import pytest
from support.forked import Flushed, Server, assert_clean, assert_holds, hidden, published
from support.programs import TRAINING
from support.traces import training

from charact.commands._shared.publish import has_views
from charact.commands._shared.runs import read_run
from charact.record.reader import load_run

QUICK = ["--threads", "1", "--quiet"]
SCRIPT = TRAINING + """
until = time.monotonic() + 2
while time.monotonic() < until:
    step()
    time.sleep(.002)
"""
COMMANDS: dict[str, list[str]] = {
    "profile": ["profile", "mlp", "--input-sizes", "2,3,4", "--batch-sizes", "2", "--mode", "infer",
                "--max-iterations", "6", *QUICK],
    "train": ["train", "mlp", "--input-sizes", "2", "--batch-sizes", "1024", "--epochs", "3", *QUICK],
    "import": ["import", "a.json", "b.json", "c.json", "--quiet"],
    "run": ["run", "--quiet", "program.py"],
}


def place(directory: Path) -> Path:
    """An empty directory with what the commands need."""
    directory.mkdir()
    (directory / "program.py").write_text(SCRIPT)
    for name in "abc":
        training().write(directory / f"{name}.json")
    return directory


def iterations_of(partial: Path) -> dict[str, int]:
    run = read_run(partial, partial=True)
    return {entry.case: entry.passes.timing.num_iterations for entry in run.entries}


def survive(server: Server, rng: random.Random, cwd: Path, command: list[str], seconds: float) -> str:
    """Kill a command, and at times its recovery, and check what is there in the end; returns what became of it."""
    child = server.start(*command, cwd=cwd, draws_views=True)
    time.sleep(rng.random() * seconds)
    child.kill()
    child.wait()
    flushed = finished(child.flushed())
    out = cwd / "runs"
    watched = {name: count for partial in hidden(out) if command[0] == "run" and (partial / "run.json").exists()
               for name, count in iterations_of(partial).items()}
    became = "finished" if published(out) else "recovered"
    while left := hidden(out) or [path for path in published(out) if not has_views(path)]:
        again = server.start("recover", "--quiet", *(f"runs/{path.name}" for path in left), cwd=cwd, draws_views=True)
        if rng.random() < 0.3:
            time.sleep(rng.random() * 1.5)
            again.kill()
        done = again.wait()
        if done.status == 2 and "had no measurements, and is removed" in done.error:
            became = "nothing"
        elif done.status == 2 and re.search("is being written by another process|has ended: its run is", done.error):
            time.sleep(0.2)  # the recovery that the program's own end had started goes on without it
        else:
            assert done.status in (0, 1, -9), done  # 1 of a training, which is no success when it is cut off
    if became == "nothing":
        assert (flushed, watched, published(out)) == ({}, {}, [])
        return became
    if not published(out):
        assert not out.exists() or list(out.iterdir()) == []
        assert flushed == {}
        return "not begun"
    (path,) = published(out)
    run = load_run(path)
    assert_holds(run, flushed)
    assert_clean(path)
    for name, count in watched.items():
        assert run.entry(name).passes.timing.num_iterations == count
    return became


def finished(flushed: dict[str, Flushed]) -> dict[str, Flushed]:
    return {case: one for case, one in flushed.items() if one.entry.status not in ("running", "interrupted")
            or one.entry.passes.training.num_epochs}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kills"), [
    ("profile", 35), ("train", 25), ("import", 20), ("run", 20)])
def test_kills(server: Server, tmp_path: Path, name: str, kills: int) -> None:
    begun = time.monotonic()
    child = server.start(*COMMANDS[name], cwd=place(tmp_path / "whole"), draws_views=True)
    while not published(tmp_path / "whole" / "runs") and not child.has_ended():
        time.sleep(0.02)
    seconds = time.monotonic() - begun
    child.kill()
    rng = random.Random(f"{name}-{kills}")
    became = [survive(server, rng, place(tmp_path / f"killed{number}"), COMMANDS[name], seconds)
              for number in range(kills)]
    print(name, {one: became.count(one) for one in set(became)}, f"{seconds:.1f} s")
    assert became.count("recovered") >= kills / 5
