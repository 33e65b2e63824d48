"""Files that trials wrote or changed below the program's directory, and a copy of it in which they cannot."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from charact.core.errors import UserError

_LEFT_OUT = {".git", "__pycache__", ".venv", "node_modules"}
_PREFIX = "charact-scratch-"
"""Before the ID of the process that a copy belongs to."""
_MOST_FILES = 200_000
"""Largest number of files that are looked at."""


def snapshot(directory: Path, left_out: Path) -> dict[str, tuple[int, int]]:
    """Return size in bytes and time of change (ns) of each file below a directory, by relative path.

    `left_out` is a directory of charact's own files. Those that this process prints to are left out, too.
    """
    printed = set()
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):  # it is closed
            facts = os.fstat(descriptor)
            printed.add((facts.st_dev, facts.st_ino))
    files: dict[str, tuple[int, int]] = {}
    own = os.path.abspath(left_out)
    for parent, folders, names in os.walk(directory):
        folders[:] = [name for name in folders if name not in _LEFT_OUT
                      and os.path.abspath(os.path.join(parent, name)) != own]
        for name in names:
            path = os.path.join(parent, name)
            try:
                facts = os.stat(path, follow_symlinks=False)
            except OSError:  # it was removed in the meantime
                continue
            if (facts.st_dev, facts.st_ino) not in printed:
                files[os.path.relpath(path, directory)] = facts.st_size, facts.st_mtime_ns
            if len(files) >= _MOST_FILES:
                return files
    return files


def changed(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> list[str]:
    """Return the paths of files that are new, changed or gone, sorted."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


@contextmanager
def scratch_copy(directory: Path) -> Iterator[Path]:
    """Yield a temporary copy of a directory, which shares blocks with it where the file system can.

    Copies of processes that were killed are removed.

    Raises:
        UserError: it cannot be copied.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        number = left.name.removeprefix(_PREFIX).partition("-")[0]
        if number.isdigit() and not psutil.pid_exists(int(number)):
            shutil.rmtree(left, ignore_errors=True)  # another user's stays
    place = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
    try:
        copied = place / directory.resolve().name
        done = subprocess.run(["cp", "-a", "--reflink=auto", str(directory), str(copied)], capture_output=True,
                              text=True, check=False)
        if done.returncode != 0:
            raise UserError(f"--scratch: {directory} cannot be copied ({done.stderr.strip().splitlines()[-1]}): free "
                            "some space, or set TMPDIR to a place that has it")
        yield copied
    finally:
        shutil.rmtree(place, ignore_errors=True)
