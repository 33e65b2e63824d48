"""The runs below TensorBoard's log directory: found, listed with what is wrong with them, and drawn once."""

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from charact.core.errors import UserError
from charact.record.in_progress import PARTIAL_PREFIX, writer_of

if TYPE_CHECKING:
    from charact.record.reader import Run

_NUM_CACHED_RUNS = 32
_MANIFEST_MARK = b'"schema_version"'

Sections = list[dict[str, str]]
T = TypeVar("T")


def run_directories(logdir: Path, on_error: Callable[[OSError], object] | None = None) -> Iterator[Path]:
    """Directories of records at or below `logdir`; of the hidden ones only those of runs that have not ended.

    A folder that cannot be read is passed over; `on_error` is told.
    """
    for folder, subfolders, files in os.walk(logdir, onerror=on_error):
        directory = Path(folder)
        if "run.json" in files and _is_record(directory, files):
            subfolders.clear()
            yield directory
        else:
            shown = (name for name in subfolders if not name.startswith(".") or name.startswith(PARTIAL_PREFIX))
            subfolders[:] = sorted(shown)


def _is_record(directory: Path, files: list[str]) -> bool:
    """Whether run.json is charact's: it stands beside tables, or (where every case failed) looks like a manifest."""
    if any(name.endswith(".parquet") for name in files):
        return True
    try:
        with open(directory / "run.json", "rb") as file:
            return _MANIFEST_MARK in file.read(4096)
    except OSError:
        return True  # listed, with the reason that reading it gives


class Records:
    """What the routes answer about the runs below a log directory. Safe to call from several threads.

    A run is named by its path relative to the log directory, and only paths found by `run_directories` are read. One
    that has not ended goes by the name that it will have.

    Args:
        logdir: the log directory.
        read: reads a run that has not ended; by default without a watched program's spool, which no view can read.
    """

    def __init__(self, logdir: str, read: Callable[[Path], "Run"] | None = None) -> None:
        self._logdir = Path(logdir).expanduser() if logdir else None
        self._read_unended = read
        self._drawing = threading.Lock()  # no run is drawn twice at once
        self._drawn: OrderedDict[Path, tuple[Any, Sections]] = OrderedDict()

    def exist(self) -> bool:
        """Whether there is any run."""
        return self._logdir is not None and any(True for _ in run_directories(self._logdir))

    def directories(self) -> dict[str, Path]:
        """Run directories by id."""
        if self._logdir is None:
            return {}
        paths = list(run_directories(self._logdir))
        names = [path.with_name(path.name.removeprefix(PARTIAL_PREFIX)) for path in paths]
        return {_readable(name.relative_to(self._logdir)): path for name, path in zip(names, paths, strict=True)}

    def listing(self) -> list[dict[str, Any]]:
        """One entry a run, newest first; `error` holds why a run cannot be read, else null."""
        entries = [_entry(run_id, path) for run_id, path in self.directories().items()]
        return sorted(entries, key=lambda entry: (entry["started_s"] or 0.0, entry["id"]), reverse=True)

    def sections(self, run_id: str) -> Sections:
        """Sections of a run as in the HTML report: id, title, html.

        Raises:
            KeyError: there is no such run.
            UserError: it cannot be read.
        """
        return self._at(run_id, self._sections)

    def _sections(self, path: Path) -> Sections:
        from charact.views.html.report import sections

        with self._drawing:
            state = _state(path)
            if path not in self._drawn or self._drawn[path][0] != state:
                drawn = [{"id": part.id, "title": part.title, "html": part.html} for part in sections(self._load(path))]
                self._drawn[path] = (state, drawn)
            self._drawn.move_to_end(path)
            while len(self._drawn) > _NUM_CACHED_RUNS:
                self._drawn.popitem(last=False)
            return self._drawn[path][1]

    def comparison(self, run_ids: list[str]) -> Sections:
        """Sections that compare several runs, the first being the baseline: id, title, html.

        Raises:
            KeyError: one of the runs is not there.
            UserError: no run is named, or one of them cannot be read.
        """
        from charact.views.tensorboard.comparison import comparison

        if not run_ids:
            raise UserError("no run to compare is named: choose some in the list")
        return comparison([self._at(run_id, self._load) for run_id in run_ids])

    def _at(self, run_id: str, read: Callable[[Path], T]) -> T:
        """What reading a run gives; where the run ended, and was renamed, in between, it is looked for once more.

        Raises:
            KeyError: there is no such run.
            UserError: it cannot be read.
        """
        path = self.directories()[run_id]
        try:
            return read(path)
        except UserError:
            if path.exists():
                raise
            return read(self.directories()[run_id])

    def _load(self, path: Path) -> "Run":
        return self._read_unended(path) if self._read_unended is not None and _is_hidden(path) else _load(path)


def _load(path: Path) -> "Run":
    from charact.record.reader import load_run

    return load_run(path, partial=_is_hidden(path))


def _is_hidden(path: Path) -> bool:
    """Whether a run has not ended, by its name."""
    return path.name.startswith(PARTIAL_PREFIX)


def _readable(relative: Path) -> str:
    """The path as text that JSON can carry, whatever bytes the file system holds."""
    return os.fsencode(relative.as_posix()).decode("utf-8", "replace")


def _state(path: Path) -> list[tuple[str, int, int]]:
    """What changes when a run is written again."""
    files = [path / "run.json", *sorted(path.glob("*.parquet"))]
    if _is_hidden(path):
        files += sorted(file for folder in (path, path / "parts") for file in folder.glob("*"))
    found = []
    for file in files:
        with contextlib.suppress(OSError):  # removed since it was listed: whoever writes the run changes its files
            status = file.stat()
            found.append((file.name, status.st_mtime_ns, status.st_size))
    return found


def _entry(run_id: str, path: Path) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "id": run_id, "path": run_id, "name": _readable(Path(path.absolute().name)), "started": None,
        "started_s": None, "machine": None, "status": None, "num_cases": None, "error": None,
    }  # fmt: skip
    try:
        return entry | _facts(_load(path))
    except UserError as error:
        return entry | {"error": str(error).replace(str(path), path.name)}


def _facts(run: "Run") -> dict[str, Any]:
    manifest = run.manifest
    started = manifest.get("started")
    return {
        "name": manifest["name"], "started": started,
        "started_s": None if started is None else datetime.fromisoformat(started).timestamp(),
        "machine": _machine(manifest.get("machine", {})),
        "status": _progress(run.path) if run.partial else manifest["status"], "num_cases": len(manifest["cases"]),
    }  # fmt: skip


def _progress(path: Path) -> str:
    """Whether a run that has not ended goes on, as far as that can be told: its process may be another machine's."""
    import psutil

    writer = writer_of(path)
    return "in progress" if writer is not None and psutil.pid_exists(writer) else "unfinished"


def _machine(facts: dict[str, Any]) -> str:
    """Host and device; those of a watched program are looked for when it has ended, and on its own machine only."""
    if not facts:
        return "n/a (not recorded, or not yet)"
    gpus, processor = facts.get("gpus"), facts.get("cpu") or {}
    device = (gpus[0] if gpus else {}).get("name") or processor.get("model") or "n/a (not recorded)"
    # A trace does not tell the name of its machine.
    return f"{facts['hostname']} · {device}" if facts.get("hostname") else device
