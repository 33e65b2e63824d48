"""The directory of a sweep: its definition, outcomes, logs, locks and runs; how far it is, and when it may end."""

import contextlib
import re
import shutil
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Literal, NamedTuple

import msgspec

from charact.core.errors import UserError
from charact.core.files import atomic_write, lock, reading, release, writing
from charact.core.text import label
from charact.record.in_progress import PARTIAL_PREFIX
from charact.sweeps.definition import Definition, SweepCase

FORMAT = 1
_LONGEST_NAME = 60
State = Literal["waiting", "running", "ok", "failed", "killed"]
"""State of a case. A failed one ended with an exit status other than 0; a killed one by a signal, and runs again."""

_DONE: tuple[State, ...] = ("ok", "failed")


class Outcome(msgspec.Struct, frozen=True):
    """How the last attempt of a case ended, as written to `cases/<id>.json`."""

    state: State
    exit_status: int | None
    """Exit status of the command; None if a signal ended it."""
    reason: str
    """Last line of its output if it did not succeed."""
    run: str | None
    """Name of its run in `runs/`; None if it wrote none."""
    seconds: float
    """Wall time of the process (s)."""
    host: str
    started: str
    """Local time with its offset, as in ISO 8601."""
    attempts: int


class _Listed(msgspec.Struct, frozen=True):
    format: int
    name: str
    cases: list[tuple[str, list[tuple[str, str]], int]]


class SweepDirectory:
    """A sweep on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runs = path / "runs"

    def create(self, definition: Definition) -> None:
        """Create the directory, or check that it belongs to this sweep, and list the cases in it.

        Cases that an earlier version of the file had keep their outcomes and runs.
        """
        if self._file.exists():
            other = self.definition()
            if other.name != definition.name:
                raise UserError(f"{self.path} is the directory of the sweep '{label(other.name)}', not of "
                                f"'{label(definition.name)}': --out names another")
        elif self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise UserError(f"{self.path} exists and is no directory of a sweep: --out names another")
        with writing(self.path):
            for folder in (self.runs, self.path / "cases", self.path / "logs", self.path / "locks"):
                folder.mkdir(parents=True, exist_ok=True)
        listed = _Listed(FORMAT, definition.name,
                         [(case.command, list(case.options), case.repeat) for case in definition.cases])
        with atomic_write(self._file) as temporary:
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode(listed), indent=1))

    @property
    def _file(self) -> Path:
        return self.path / "sweep.json"

    def definition(self) -> Definition:
        """Return the sweep that the directory lists."""
        if not self._file.is_file():
            raise UserError(f"{self.path} is no directory of a sweep: name the one that `charact sweep` printed")
        with reading(self._file):
            content = self._file.read_bytes()
        try:
            listed = msgspec.json.decode(content, type=_Listed)
        except msgspec.DecodeError as error:
            raise UserError(f"{self._file} is damaged ({error}): run `charact sweep FILE` again") from error
        if listed.format != FORMAT:
            raise UserError(f"{self._file} has format {listed.format}, this version reads {FORMAT}: update charact")
        return Definition(listed.name, tuple(
            SweepCase(command, tuple(options), repeat) for command, options, repeat in listed.cases))

    def outcome(self, case: SweepCase) -> Outcome | None:
        """Return how the last attempt of a case ended; None if there was none."""
        try:
            return msgspec.json.decode((self.path / "cases" / f"{case.id}.json").read_bytes(), type=Outcome)
        except (OSError, msgspec.DecodeError):
            return None

    def is_done(self, case: SweepCase) -> bool:
        """Return whether a case succeeded or failed; one that was killed runs again."""
        outcome = self.outcome(case)
        return outcome is not None and outcome.state in _DONE

    def state(self, case: SweepCase) -> State:
        """Return the state of a case; a case whose lock is held is running."""
        found = self.outcome(case)
        if found is not None and self.is_done(case):
            return found.state
        return "running" if self.is_locked(case.id) else "waiting" if found is None else found.state

    def forget(self, case: SweepCase) -> None:
        """Mark a case as waiting and remove its run, so that it runs again; its time and attempts are kept."""
        found, published = self.outcome(case), self.run_of(case)
        if found is not None:
            self.write(case, msgspec.structs.replace(found, state="waiting", reason="", run=None))
        if published is not None:
            shutil.rmtree(published, ignore_errors=True)

    def end(self, case: SweepCase, state: State, begun: "Begun", exit_status: int | None, reason: str,
            run: Path | None = None) -> None:
        """Write how an attempt that has begun has ended."""
        before = self.outcome(case)
        self.write(case, Outcome(
            state, exit_status, reason, None if run is None else run.name, time.monotonic() - begun.monotonic_s,
            socket.gethostname(), begun.local, 1 + (before.attempts if before is not None else 0)))

    def write(self, case: SweepCase, outcome: Outcome) -> None:
        """Write how a case ended, atomically."""
        with atomic_write(self.path / "cases" / f"{case.id}.json") as temporary:
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode(outcome), indent=1))

    def log(self, case: SweepCase) -> Path:
        """Return the file with the output of a case's last attempt."""
        return self.path / "logs" / f"{case.id}.txt"

    def run_of(self, case: SweepCase) -> Path | None:
        """Return the published run of a case; None if there is none."""
        return next((path for path in sorted(self.runs.glob(f"*-{case.id}-*"))
                     if not path.name.startswith(".")), None)

    def remove_unfinished(self, case: SweepCase) -> None:
        """Remove what killed or interrupted attempts of a case have left; the caller holds its lock."""
        published = self.run_of(case)
        if published is not None:
            try:
                complete = msgspec.json.decode((published / "run.json").read_bytes()).get("status") == "complete"
            except (OSError, msgspec.DecodeError, AttributeError):
                complete = False
            if not complete:
                shutil.rmtree(published)
        for path in self.runs.glob(f"{PARTIAL_PREFIX}*-{case.id}-*"):
            shutil.rmtree(path, ignore_errors=True)

    @contextlib.contextmanager
    def locked(self, name: str) -> Iterator[bool]:
        """Hold a lock of this name; yield False if another process has it."""
        path = self.path / "locks" / name
        file = lock(path)
        try:
            yield file is not None
        finally:
            if file is not None:
                release(file, path)

    def is_locked(self, name: str) -> bool:
        """Return whether a process holds the lock of this name."""
        if not (self.path / "locks" / name).exists():
            return False
        with self.locked(name) as is_free:
            return not is_free


def _recorded_cases(run: Path) -> list[dict[str, Any]]:
    with reading(run / "run.json"):
        cases: list[dict[str, Any]] = msgspec.json.decode((run / "run.json").read_bytes())["cases"]
    return cases


def succeeded(run: Path) -> bool:
    """Return whether a case of a published run ended well."""
    return any(entry.get("status") == "ok" for entry in _recorded_cases(run))


def failure_of(run: Path) -> str:
    """Return the status and reason of the first case of a published run that failed; empty if none did."""
    failed = (entry for entry in _recorded_cases(run) if entry.get("status") != "ok")
    return next((": ".join(filter(None, (entry.get("status"), entry.get("reason")))) for entry in failed), "")


def run_name(case: SweepCase) -> str:
    """Return the name of a case's run: the values of its options, and its identity."""
    words = re.findall(r"[A-Za-z0-9_.]+", " ".join([case.command, *(value for _, value in case.options)]))
    return f"{'-'.join(words)[:_LONGEST_NAME].rstrip('-')}-{case.id}"


class Begun(NamedTuple):
    """When an attempt began."""

    local: str
    monotonic_s: float


def now() -> Begun:
    """Return the time at which an attempt begins."""
    return Begun(time.strftime("%Y-%m-%dT%H:%M:%S%z"), time.monotonic())


@dataclass(frozen=True)
class CaseStatus:
    """A case with its state and the outcome of its last attempt."""

    case: SweepCase
    state: State
    outcome: Outcome | None

    @property
    def is_done(self) -> bool:
        """Whether the case succeeded or failed; one that was killed runs again."""
        return self.state in _DONE


def statuses(directory: SweepDirectory, cases: Sequence[SweepCase]) -> list[CaseStatus]:
    """Return the state of each case."""
    return [CaseStatus(case, directory.state(case), directory.outcome(case)) for case in cases]


def counts(found: Sequence[CaseStatus]) -> dict[State, int]:
    """Return the number of cases in each state."""
    number = Counter(status.state for status in found)
    return {state: number[state] for state in ("ok", "failed", "killed", "running", "waiting")}


def remaining_s(found: Sequence[CaseStatus]) -> float | None:
    """Return the expected time of the cases that are not done (s): the sum of `expected_times`; None if not known."""
    times = expected_times(found)
    waiting = [status.case for status in found if not status.is_done]
    return sum(times[case] for case in waiting) if all(case in times for case in waiting) and (
        times or not waiting) else None


def expected_times(found: Sequence[CaseStatus]) -> dict[SweepCase, float]:
    """Return the expected time of each case that is not done (s), from the times of those that are.

    A case that --retry repeats takes as long as the last time. Another takes the average of the cases with the same
    command, workload, mode and node, else of any node, else of the same command, else of all. Empty if no time is
    known.

    *Error*: cases of one workload may differ by their sizes; running cases count in full.
    """
    times: dict[tuple[str, ...], list[float]] = {}
    for status in found:
        if status.outcome is not None and (status.is_done or status.state == "waiting"):
            for key in [(status.case.id,), *_keys(status.case)]:
                times.setdefault(key, []).append(status.outcome.seconds)
    return {status.case: mean(next(times[key] for key in [(status.case.id,), *_keys(status.case)] if key in times))
            for status in found if times and not status.is_done}


def _keys(case: SweepCase) -> list[tuple[str, ...]]:
    options = dict(case.options)
    near = case.command, options.get("workload", ""), options.get("mode", "")
    return [(*near, case.node or ""), near, (case.command,), ()]
