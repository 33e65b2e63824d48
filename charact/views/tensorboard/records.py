"""The runs in TensorBoard's log directory: found, listed with read errors, and rendered once."""

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from charact.core.errors import UserError
from charact.record.in_progress import PARTIAL_PREFIX, writer_of
from charact.record.runs import run_directories

if TYPE_CHECKING:
    from charact.record.reader import Run

_NUM_CACHED_RUNS = 32
_NUM_LETTERS = 26

Sections = list[dict[str, str]]
T = TypeVar("T")


class Records:
    """Answers of the routes about the runs in a log directory. Thread-safe.

    A run is identified by its path relative to the log directory, and only paths found by `run_directories` are read.
    An unfinished run has its final name.

    Args:
        logdir: the log directory.
        read: reads an unfinished run; the default does not read the event log of a watched program.
    """

    def __init__(self, logdir: str, read: Callable[[Path], "Run"] | None = None) -> None:
        self._logdir = Path(logdir).expanduser() if logdir else None
        self._read_unended = read
        self._drawing = threading.Lock()  # no run is rendered twice at the same time
        self._drawn: OrderedDict[Path, tuple[Any, Sections]] = OrderedDict()
        self._listed: dict[Path, tuple[Any, dict[str, Any]]] = {}

    def exist(self) -> bool:
        """Return whether there is any run."""
        return self._logdir is not None and any(True for _ in run_directories(self._logdir))

    def directories(self) -> dict[str, Path]:
        """Return run directories by ID."""
        if self._logdir is None:
            return {}
        paths = list(run_directories(self._logdir))
        names = [path.with_name(path.name.removeprefix(PARTIAL_PREFIX)) for path in paths]
        return {_readable(name.relative_to(self._logdir)): path for name, path in zip(names, paths, strict=True)}

    def listing(self) -> list[dict[str, Any]]:
        """Return one entry per run, newest first; `error` is why a run cannot be read, else null."""
        entries = [self._entry(run_id, path) for run_id, path in self.directories().items()]
        return sorted(entries, key=lambda entry: (entry["started_s"] or 0.0, entry["id"]), reverse=True)

    def _entry(self, run_id: str, path: Path) -> dict[str, Any]:
        """Return the entry of a run; that of a finished run is read again only if its run.json has changed."""
        if _is_hidden(path):
            return _entry(run_id, path)
        state = _state_of(path / "run.json")
        if path not in self._listed or self._listed[path][0] != state:
            self._listed[path] = (state, _entry(run_id, path))
        return self._listed[path][1]

    def sections(self, run_id: str, *, only_first: bool = False) -> Sections:
        """Return the sections of a run as in the HTML report, or only the first: id, title, html.

        Raises:
            KeyError: there is no such run.
        """
        return self._at(run_id, lambda path: self._sections(path, only_first))

    def _sections(self, path: Path, only_first: bool) -> Sections:
        from charact.views.html.report import sections, unbroken

        with self._drawing:
            state = _state(path)
            if path not in self._drawn or self._drawn[path][0] != state:
                drawn = [{"id": part.id, "title": part.title, "html": unbroken(part.html)}
                         for part in sections(self._load(path), only_first=only_first)]
                if only_first:
                    return drawn
                self._drawn[path] = (state, drawn)
            self._drawn.move_to_end(path)
            while len(self._drawn) > _NUM_CACHED_RUNS:
                self._drawn.popitem(last=False)
            return self._drawn[path][1]

    def comparison(self, run_ids: list[str]) -> Sections:
        """Return the sections that compare runs, of which the first is the baseline: id, title, html.

        Raises:
            KeyError: one of the runs does not exist.
        """
        if not run_ids:
            raise UserError("no runs to compare: choose some in the list")
        return comparison([self._at(run_id, self._load) for run_id in run_ids])

    def _at(self, run_id: str, read: Callable[[Path], T]) -> T:
        """Return what `read` returns for a run; search again if the run finished and was renamed in between.

        Raises:
            KeyError: there is no such run.
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


def comparison(runs: Sequence["Run"]) -> Sections:
    """Return the sections that compare runs, each a group of its own, labelled by the tab's letters."""
    from charact.analysis.compare import Group, ignoring_differences
    from charact.record.presentable import presentable
    from charact.views.html.report import comparison_sections, unbroken

    runs = [presentable(run) for run in runs]
    sides = [Group(f"{_letter(number)} {run.manifest['name']}", (run,)) for number, run in enumerate(runs)]
    parts = comparison_sections(ignoring_differences(sides))
    return [{"id": part.id, "title": part.title, "html": unbroken(part.html)} for part in parts]


def _letter(number: int) -> str:
    """Return the tab's letter; after Z letters repeat with a number, since labels must be distinct."""
    again, position = divmod(number, _NUM_LETTERS)
    return chr(ord("A") + position) + (str(again + 1) if again else "")


def _load(path: Path) -> "Run":
    from charact.record.reader import load_run

    return load_run(path, partial=_is_hidden(path))


def _is_hidden(path: Path) -> bool:
    """Return whether a run is unfinished, by its name."""
    return path.name.startswith(PARTIAL_PREFIX)


def _readable(relative: Path) -> str:
    """Return the path as text for JSON, whatever its bytes."""
    return os.fsencode(relative.as_posix()).decode("utf-8", "replace")


def _state(path: Path) -> list[tuple[str, int, int]]:
    """Return the state of the files, which changes if a run is written again."""
    files = [path / "run.json", *sorted(path.glob("*.parquet"))]
    if _is_hidden(path):
        files += sorted(file for folder in (path, path / "parts") for file in folder.glob("*"))
    return [state for file in files if (state := _state_of(file)) is not None]


def _state_of(file: Path) -> tuple[str, int, int] | None:
    """Return a file's name, time and size; None if it has been removed since it was listed."""
    with contextlib.suppress(OSError):
        status = file.stat()
        return file.name, status.st_mtime_ns, status.st_size
    return None


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
    """Return whether an unfinished run is in progress: its process must run on this machine."""
    import psutil

    writer = writer_of(path)
    return "in progress" if writer is not None and psutil.pid_exists(writer) else "unfinished"


def _machine(facts: dict[str, Any]) -> str:
    """Return host and device; the facts of a watched program are recorded when it ends."""
    if not facts:
        return "n/a (not recorded, or not yet)"
    gpus, processor = facts.get("gpus"), facts.get("cpu") or {}
    device = (gpus[0] if gpus else {}).get("name") or processor.get("model") or "n/a (not recorded)"
    # A trace has no host name.
    return f"{facts['hostname']} · {device}" if facts.get("hostname") else device
