"""Many records: finding their directories, and reading those that a pattern names."""

import glob
import os
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from charact.core.errors import UserError
from charact.record.in_progress import PARTIAL_PREFIX
from charact.record.rank_parts import RANKS_PREFIX

if TYPE_CHECKING:
    import pandas as pd

    from charact.record.reader import Run

_MANIFEST_MARK = b'"schema_version"'


def run_directories(logdir: Path, on_error: Callable[[OSError], object] | None = None) -> Iterator[Path]:
    """Return directories of records at or below `logdir`; hidden ones only if they are unfinished runs.

    A folder that cannot be read is skipped and passed to `on_error`.
    """
    for folder, subfolders, files in os.walk(logdir, onerror=on_error):
        directory = Path(folder)
        if "run.json" in files and _is_record(directory, files):
            subfolders.clear()
            yield directory
        else:
            shown = (name for name in subfolders if not name.startswith(RANKS_PREFIX)  # parts, which are no runs yet
                     and (not name.startswith(".") or name.startswith(PARTIAL_PREFIX)))
            subfolders[:] = sorted(shown)


def _is_record(directory: Path, files: list[str]) -> bool:
    """Return whether run.json is charact's: it is next to tables, or looks like a manifest (if all cases failed)."""
    if any(name.endswith(".parquet") for name in files):
        return True
    try:
        with open(directory / "run.json", "rb") as file:
            return _MANIFEST_MARK in file.read(4096)
    except OSError:
        return True  # listed with the error of reading it


class Runs(list["Run"]):
    """Runs in the order of time; a list."""

    def summary(self) -> "pd.DataFrame":
        """Return the headline numbers of every run: the columns of `Run.summary` after `run`, the run's identifier.

        The tables of each run are freed.
        """
        import pandas as pd

        frames = []
        for run in self:
            frame = run.summary()
            frame.insert(0, "run", run.run_id)
            frames.append(frame)
            run.release()
        return pd.concat(frames, ignore_index=True)


def load_runs(pattern: "str | Path | Iterable[str | Path]") -> Runs:
    """Read all complete runs that a pattern names, oldest first; `load_runs(...).summary()` has a row for each case.

    A directory that holds no `run.json` stands for every run below it. Unfinished and interrupted runs are left out.
    Tables are read when they are used; `Run.release` frees them.

    Args:
        pattern: run directories, or directories of runs, as in `runs`, `runs/*resnet*` or `sweeps/**/runs`; or several
            of them.

    Raises:
        UserError: a pattern names no complete run, or a run that is corrupt or has a newer schema.
    """
    from charact.record.reader import load_run

    runs: dict[Path, Run] = {}
    for each in [pattern] if isinstance(pattern, str | os.PathLike) else pattern:
        text = os.path.expanduser(each)
        matched = [Path(text)] if os.path.exists(text) else map(Path, glob.iglob(text, recursive=True))
        paths = {path: None for place in matched for path in run_directories(place)}
        read = [load_run(path) for path in paths if not path.name.startswith(PARTIAL_PREFIX)]
        complete = {run.path.absolute(): run for run in read if run.manifest["status"] == "complete"}
        if not complete:
            raise UserError(f"'{each}' names no complete run: give a directory of runs or a pattern, as in "
                            "runs/*resnet*")
        runs |= complete
    return Runs(sorted(runs.values(), key=lambda run: (started(run.manifest.get("started")), run.run_id)))


def started(text: str | None) -> datetime:
    """Return the time at which a run started, from its manifest; the earliest time if that is missing or invalid."""
    try:
        time = datetime.fromisoformat(text or "")
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return time if time.tzinfo else time.replace(tzinfo=UTC)
