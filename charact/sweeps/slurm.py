"""Runs a sweep's cases on Slurm, by submitit: an array per type of node, a task per case.

Whether a case has ended is read from its outcome, never from the scheduler, whose answer is late, wrong after a lost
node, and missing without accounting. The queue is only asked which jobs still exist.
"""

import contextlib
import getpass
import inspect
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from signal import SIGTERM
from typing import TYPE_CHECKING

import msgspec

from charact.core.errors import UserError
from charact.core.files import atomic_write
from charact.sweeps.definition import SweepCase
from charact.sweeps.directory import SweepDirectory

if TYPE_CHECKING:
    import submitit

_POLL_S = 1.0
_GRACE_S = 15.0
"""Time for an outcome to arrive on a shared file system after its job has left the queue (s)."""
_DEFAULT_MINUTES = 60

OnChange = Callable[[], None]
"""Function that is called before each query of the queue."""


class CaseJob:
    """What a job runs: one case in a process of its own. submitit stores it, and calls it on the node."""

    def __init__(self, directory: Path, case_id: str) -> None:
        self._directory, self._case_id = directory, case_id
        self._child: subprocess.Popen[bytes] | None = None

    def __call__(self) -> int:
        """Run the case; return the exit status of its process."""
        with (self._directory / "logs" / f"{self._case_id}.txt").open("wb") as output:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "charact.sweeps.task", str(self._directory), self._case_id],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        return self._child.wait()

    def checkpoint(self) -> "submitit.helpers.DelayedSubmission":
        """Stop the case, and return a request to queue its job again: others need the node.

        submitit calls this in a signal handler, which interrupts `wait` in `__call__` while that holds a lock.
        """
        import submitit

        if self._child is not None:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._child.pid, SIGTERM)
                os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOWAIT)
        return submitit.helpers.DelayedSubmission(CaseJob(self._directory, self._case_id))


def run_cases(directory: SweepDirectory, cases: Sequence[SweepCase], parameters: Mapping[str, str],
              nodes: Mapping[str, Mapping[str, str]], on_change: OnChange) -> list[SweepCase]:
    """Submit a job for each case that has none in the queue, and wait until all have ended; return the lost cases.

    A lost case left the queue without an outcome: its job was cancelled, its node died, or it ran out of time.

    All nodes see the directory under the same path. `parameters` are options of sbatch, with underscores for dashes;
    `time` is in minutes. `nodes` replace or extend these for cases that name a type of node.
    """
    if shutil.which("sbatch") is None:
        raise UserError("there is no sbatch on the path: run this where Slurm's commands are, or with --launcher local")
    jobs = _Jobs(directory)
    waiting = jobs.queued(cases)
    for node, some in by_node([case for case in cases if case.id not in waiting]).items():
        jobs.submit(some, {**parameters, **(nodes[node] if node is not None else {})})
    left = {case.id: case for case in cases}
    lost: list[SweepCase] = []
    gone_s: dict[str, float] = {}
    while left:
        on_change()
        queued = jobs.queued(list(left.values()))
        for case in list(left.values()):
            if directory.is_done(case):
                del left[case.id]
            elif case.id in queued or directory.is_locked(case.id):
                gone_s.pop(case.id, None)
            elif time.monotonic() - gone_s.setdefault(case.id, time.monotonic()) > _GRACE_S:
                lost.append(left.pop(case.id))
        if left:
            time.sleep(_POLL_S)
    return lost


def by_node(cases: Sequence[SweepCase]) -> dict[str | None, list[SweepCase]]:
    """Return the cases of each type of node, in order: an array of jobs has the same options for all its tasks."""
    found: dict[str | None, list[SweepCase]] = {}
    for case in cases:
        found.setdefault(case.node, []).append(case)
    return found


class _Jobs:
    """Jobs of the cases, by the case's identity; kept in `slurm/jobs.json`."""

    def __init__(self, directory: SweepDirectory) -> None:
        self._folder = directory.path.resolve() / "slurm"
        self._path = directory.path.resolve()
        self._folder.mkdir(exist_ok=True)
        self._file = self._folder / "jobs.json"
        self._jobs: dict[str, str] = {}
        with contextlib.suppress(OSError, msgspec.DecodeError):
            self._jobs = msgspec.json.decode(self._file.read_bytes(), type=dict[str, str])

    def queued(self, cases: Sequence[SweepCase]) -> set[str]:
        """Return the identities of the cases whose jobs are waiting or running.

        While Slurm does not answer, these are all cases that ever had a job.
        """
        command = ["squeue", "--noheader", "--array", "--user", getpass.getuser(), "--format", "%i"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        ours = {case.id for case in cases if case.id in self._jobs}
        if answer.returncode != 0:
            return ours
        alive = set(answer.stdout.split())
        return {case_id for case_id in ours if self._jobs[case_id] in alive}

    def submit(self, cases: Sequence[SweepCase], parameters: Mapping[str, str]) -> None:
        """Submit an array with a job per case."""
        if not cases:
            return
        try:
            from submitit.core.utils import FailedJobError
            from submitit.slurm.slurm import SlurmExecutor, _make_sbatch_string
        except ImportError as error:
            raise UserError("jobs of Slurm need submitit: pip install 'charact[slurm]'") from error
        executor = SlurmExecutor(folder=str(self._folder))
        named = set(inspect.signature(_make_sbatch_string).parameters)
        values = {"time": _DEFAULT_MINUTES, "job_name": "charact"}
        values |= {name: text.lower() == "true" if text.lower() in ("true", "false") else
                   int(text) if text.isdecimal() else text for name, text in parameters.items()}
        more = {name.replace("_", "-"): values.pop(name) for name in set(values) - named}
        executor.update_parameters(**values, additional_parameters=more)
        try:
            with executor.batch():
                submitted = [executor.submit(CaseJob(self._path, case.id)) for case in cases]
        except FailedJobError as error:
            raise UserError(f"Slurm rejects the jobs: {' '.join(str(error).split())[-300:]}") from error
        self._jobs |= {case.id: job.job_id for case, job in zip(cases, submitted, strict=True)}
        with atomic_write(self._file) as temporary:
            temporary.write_bytes(msgspec.json.encode(self._jobs))
