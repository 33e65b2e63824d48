"""An index of many runs: the metrics of their cases, read from the records once and kept in the user's cache."""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from charact.core.errors import UserError
from charact.core.files import atomic_write, user_cache
from charact.record.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from charact.analysis.common.significance import Sample

FORMAT = 2
_NUM_KEPT_CHANGES = 256

OnRun = Callable[[], object]
"""Function that is called after each run that had to be read."""


class Number(msgspec.Struct, array_like=True, frozen=True):
    """A metric of a case in one run, in its base unit."""

    value: float
    low: float | None
    high: float | None
    """95 % interval over the iterations or epochs of the run; None with the reason."""
    reason: str | None

    @classmethod
    def of(cls, sample: "Sample") -> "Number":
        """Return the value of a run's sample."""
        low, high = sample.interval or (None, None)
        reason = "a count: no variation" if sample.exact else sample.reason
        return cls(sample.value, low, high, reason if low is None else None)


class CaseFacts(msgspec.Struct, array_like=True, frozen=True):
    """A case of a run."""

    status: str
    reason: str | None
    metrics: dict[str, Number]


class RunFacts(msgspec.Struct, array_like=True, frozen=True):
    """A run; its state is the time and size of run.json when it was read."""

    run: str
    state: tuple[int, int]
    started: str | None
    commit: str | None
    dirty: bool | None
    machine: str | None
    torch: str | None
    problem: str | None
    """Why the run cannot be read; None if it can."""
    cases: dict[str, CaseFacts]
    summary: list[dict[str, Any]] = []
    """Rows of `charact.analysis.summary`."""


class _Cache(msgspec.Struct):
    """Content of an index file: facts of runs by path, and change points of series by a digest of their values."""

    made_by: str
    runs: dict[str, RunFacts] = {}
    changes: dict[str, list[int]] = {}


@dataclass
class Index:
    """Facts of runs by path, with the file that keeps them and those of other runs in the same directories."""

    runs: dict[str, RunFacts]
    changes: dict[str, list[int]]
    others: dict[str, RunFacts]
    place: Path | None
    """The file; None without a home directory."""

    def keep(self) -> None:
        """Write the file, if it can be written."""
        if self.place is None:
            return
        others = {path: facts for path, facts in self.others.items() if os.path.exists(path)}
        content = _Cache(_made_by(), others | self.runs, dict(list(self.changes.items())[-_NUM_KEPT_CHANGES:]))
        with contextlib.suppress(OSError, UserError):
            self.place.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(self.place, durable=False) as temporary:
                temporary.write_bytes(msgspec.json.encode(content))


def read_index(paths: Sequence[Path], on_run: OnRun = lambda: None) -> Index:
    """Return the index of these runs; runs that are new or have changed are read, and the index is kept.

    A cache that is missing, damaged or of another version is made again. If it cannot be written, the index is still
    returned. `on_run` is called after each run that was read.
    """
    place = _place(paths)
    cached = _cached(place)
    index, has_changed = Index({}, cached.changes, cached.runs, place), False
    for name in map(os.path.abspath, paths):
        facts, state = index.others.pop(name, None), _state(name)
        if facts is None or facts.state != state:
            facts, has_changed = _facts(Path(name), state), True
            on_run()
        index.runs[name] = facts
    if has_changed:
        index.keep()
    return index


def change_points_of(index: Index, values: Sequence[float]) -> list[int]:
    """Return the change points of a series, kept in the index: finding them imports SciPy, which takes 0.5 s."""
    digest = hashlib.sha256(repr(list(values)).encode()).hexdigest()[:24]
    if digest not in index.changes:
        from charact.analysis.history.change_points import change_points

        index.changes[digest] = change_points(values)
        index.keep()
    return index.changes[digest]


def _made_by() -> str:
    return f"{FORMAT} {SCHEMA_VERSION} {version('charact')}"


def _place(paths: Iterable[Path]) -> Path | None:
    """Return the index file of runs, named after the directories that they are in; None without a home directory."""
    folders = sorted({os.path.abspath(path.parent) for path in paths})
    name = hashlib.sha256("\0".join(folders).encode(errors="surrogateescape")).hexdigest()[:24]
    try:
        return user_cache() / "history" / f"{name}.json"
    except RuntimeError:
        return None


def _cached(place: Path | None) -> _Cache:
    with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
        cache = _Cache("") if place is None else msgspec.json.decode(place.read_bytes(), type=_Cache)
        if cache.made_by == _made_by():
            return cache
    return _Cache(_made_by())


def _state(directory: str) -> tuple[int, int]:
    try:
        status = os.stat(os.path.join(directory, "run.json"))
    except OSError:
        return (0, 0)
    return status.st_mtime_ns, status.st_size


def _facts(path: Path, state: tuple[int, int]) -> RunFacts:
    from charact.analysis.common.machine_names import machine_name
    from charact.analysis.compare.ratios import metric_samples
    from charact.analysis.summary import summary_rows
    from charact.record.presentable import presentable
    from charact.record.reader import load_run

    try:
        run = presentable(load_run(path))
        metrics = {case: {name: Number.of(sample) for name, sample in samples.items()}
                   for case, samples in metric_samples(run).items()}
    except UserError as error:
        return RunFacts(path.name, state, None, None, None, None, None, str(error), {})
    software = run.manifest.get("software") or {}
    git = software.get("git") or {}
    cases = {entry.case: CaseFacts(entry.status, entry.reason, metrics.get(entry.case, {})) for entry in run.entries}
    facts = RunFacts(run.run_id, state, run.manifest.get("started"), git.get("commit"), git.get("dirty"),
                     machine_name(run), software.get("torch"), None, cases, summary_rows(run))
    run.release()
    return facts
