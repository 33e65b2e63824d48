"""Ranks of a job in forked children, with the variables that torchrun would set."""

import itertools
import os
import time
from pathlib import Path

from charact import Run
from support.forked import Child, Server, hidden
from support.programs import free_port
from support.programs import only_record as record_below

SCRIPT = Path(__file__).parents[1] / "scripts" / "ranks.py"
NUMBERS = itertools.count()


def start_ranks(server: Server, cwd: Path, *arguments: object, world_size: int = 2, script: Path = SCRIPT,
                options: tuple[str, ...] = ("--skip", "2"), sizes: dict[int, int] | None = None) -> list[Child]:
    """Start each rank under `charact run`."""
    port, job = str(free_port()), f"{os.getpid()}-{next(NUMBERS)}"
    children = []
    for rank in range(world_size):
        place = cwd / f"rank-{rank}"
        place.mkdir(parents=True)
        children.append(server.start(
            "run", "--out", cwd / "runs", *options, script, *arguments, cwd=place, RANK=str(rank), LOCAL_RANK=str(rank),
            WORLD_SIZE=str((sizes or {}).get(rank, world_size)), LOCAL_WORLD_SIZE=str(world_size),
            MASTER_ADDR="127.0.0.1", MASTER_PORT=port, CHARACT_JOB=job))
    return children


def run_ranks(server: Server, cwd: Path, *arguments: object, world_size: int = 2, **others: object) -> Run:
    """Run all ranks to their end, and return their one record."""
    children = start_ranks(server, cwd, *arguments, world_size=world_size, **others)  # type: ignore[arg-type]
    errors = [child.wait().error for child in children]
    return only_record(cwd, "".join(errors))


def only_record(cwd: Path, errors: str = "") -> Run:
    """Return the only record below a directory once it is whole."""
    until = time.monotonic() + 30
    while hidden(cwd / "runs") and time.monotonic() < until:
        time.sleep(0.05)
    assert [path.name for path in hidden(cwd / "runs")] == [], errors
    return record_below(cwd)
