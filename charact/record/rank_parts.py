"""Parts of a job's record: each rank writes a run of its own into the job's hidden directory, until they are merged.

    runs/.partial-ranks-<job>/lock                        held while parts are completed and merged
    runs/.partial-ranks-<job>/rank-00001/<run>/           the part of a rank that has ended
    runs/.partial-ranks-<job>/rank-00001/.partial-<run>/  the part of a rank that runs, or was killed

Imports little, because a watched program's process imports this module.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from charact.core.errors import UserError
from charact.core.files import lock, writing
from charact.record.in_progress import LOCK, PARTIAL_PREFIX

STOPPED_MEASURING = "stopped measuring"
RANKS_PREFIX = f"{PARTIAL_PREFIX}ranks-"
_STOPPED = "stopped"
"""File in a part: its rank could not measure to the end, for the reason that the file has; it may be empty."""
_RANK = re.compile(r"rank-(\d{5,9})")


class Part(NamedTuple):
    """The part of one rank."""

    rank: int
    directory: Path

    @property
    def has_ended(self) -> bool:
        """Return whether the part is complete."""
        return not self.directory.name.startswith(PARTIAL_PREFIX)

    @property
    def is_being_written(self) -> bool:
        """Return whether the rank runs, or its part is being completed."""
        return not self.has_ended and is_written(self.directory)


def is_written(directory: Path) -> bool:
    """Return whether a process holds the lock of a part; False if the part was completed in the meantime."""
    try:
        held = lock(directory / LOCK)
    except UserError:
        if directory.exists():
            raise
        return False
    if held is not None:
        os.close(held)
    return held is None


def note_stopped(directory: Path, reason: str) -> None:
    """Note in a part why its rank does not measure any more; on a full disk the file stays empty."""
    with contextlib.suppress(OSError):
        (directory / _STOPPED).write_text(reason, encoding="utf-8")


def stopped(directory: Path) -> str | None:
    """Return why the rank of a part stopped measuring, as its ending; None if it did not."""
    try:
        reason = (directory / _STOPPED).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return f"{STOPPED_MEASURING}: {reason or 'it could not write its record'}"


def part_folder(out: Path, job: str, rank: int) -> Path:
    """Return the folder in which a rank begins its part, below the parent directory of the runs."""
    return out / f"{RANKS_PREFIX}{job}" / f"rank-{rank:05d}"


def job_of(directory: Path) -> Path | None:
    """Return the job's directory of a part; None if the directory is no part."""
    job = directory.parent.parent
    return job if job.name.startswith(RANKS_PREFIX) and _RANK.fullmatch(directory.parent.name) else None


def is_job(directory: Path) -> bool:
    """Return whether a directory holds parts of ranks."""
    return directory.name.startswith(RANKS_PREFIX) and directory.is_dir()


def parts_of(job: Path) -> list[Part]:
    """Return the latest part of each rank that has begun, in the order of ranks."""
    found = []
    with writing(job):
        for folder in job.iterdir():
            if match := _RANK.fullmatch(folder.name):
                begun = [each for each in folder.iterdir() if (each / "run.json").is_file()]
                if begun:
                    latest = max(begun, key=lambda each: each.name.removeprefix(PARTIAL_PREFIX))
                    found.append(Part(int(match[1]), latest))
    return sorted(found)


@contextlib.contextmanager
def job_lock(job: Path) -> Iterator[bool]:
    """Hold the job's lock inside the block; yield whether the job still exists, and was not merged in the meantime."""
    from filelock import lock_descriptor

    try:
        held = os.open(job / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except FileNotFoundError:
        yield False
        return
    except OSError as error:
        raise UserError(f"cannot write {job} ({(error.strerror or str(error)).lower()}): make it writable") from error
    try:
        lock_descriptor(held, blocking=True)
        yield (job / LOCK).exists()
    finally:
        os.close(held)
