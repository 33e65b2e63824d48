"""Running a script bare and under `charact run`, each in a process of its own."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from charact import Run, load_run

TRAINING = """
import os, signal, sys, time
import torch
from torch.nn import functional

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=.1)

def step():
    loss = functional.mse_loss(model(torch.ones(4, 4)), torch.ones(4, 4))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

"""
"""The beginning of a small training program, which goes on with calls of `step`."""
OURS = ("Wrote ", "error: ", "charact: ")
"""How the lines begin that charact adds to a program's standard error with --quiet."""


class Ended(NamedTuple):
    """How a program ended, and what it printed; charact's own lines are apart."""

    status: int
    output: str
    error: str
    ours: list[str]


def run_bare(arguments: Sequence[str], cwd: Path, **options: Any) -> Ended:
    return _ended([sys.executable, *arguments], cwd, options)


def run_watched(arguments: Sequence[str], cwd: Path, **options: Any) -> Ended:
    return _ended([sys.executable, "-m", "charact", "run", "--quiet", *arguments], cwd, options)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def only_record(cwd: Path) -> Run:
    """The one run below `runs`, where nothing hidden is left."""
    (path,) = (cwd / "runs").iterdir()
    return load_run(path)


def num_iterations(run: Run, mode: str = "train") -> int:
    (entry,) = (entry for entry in run.entries if entry.mode == mode)
    return int(entry.passes.timing.num_iterations or 0)


def _ended(command: list[str], cwd: Path, options: dict[str, Any]) -> Ended:
    quick = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False,
                          **{"env": os.environ | quick, "timeout": 100, **options})
    lines = done.stderr.splitlines(keepends=True)
    ours = [line.strip() for line in lines if line.startswith(OURS)]
    return Ended(done.returncode, done.stdout, "".join(line for line in lines if not line.startswith(OURS)), ours)
