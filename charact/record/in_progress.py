"""Hidden directory of an unfinished run. Imports little, because a watched program's process imports this module.

The writer holds a lock, so that other processes can distinguish it from a killed run.
"""

import hashlib
import json
import os
import re
import secrets
import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

from charact.core.errors import UserError
from charact.core.files import file_name, is_begun, lock, sync, write_text, writing
from charact.core.text import valid_values
from charact.record.redaction import redacted, redacted_text
from charact.record.schema import SCHEMA_VERSION

PARTIAL_PREFIX = ".partial-"
LOCK = "lock"
"""File that the run's writer has locked; contains the writer's process ID."""
PANEL = "panel"
"""File that a live view of the run has locked; contains the codes that restore the terminal."""
SLICES, NOTES = "slices.bin", "notes.jsonl"
"""Files of a watched program's event log."""
WINDOWS, LATEST = "windows.jsonl", "latest.json"
"""Files of a watched program that goes on after its event log is full: its windows of time, and the last seconds."""
PARTS = "parts"
"""Folder of the part files with each case's rows."""
CHECKPOINTS = "checkpoints"
"""Folder of the checkpoints from which trainings resume."""
RANDOM_WEIGHTS = "random.pt"
"""File of the random weights that an inference loads without a given file."""
LEFTOVERS = (PARTS, CHECKPOINTS, SLICES, NOTES, WINDOWS, LATEST, PANEL, RANDOM_WEIGHTS)
"""Files of an unfinished run, in addition to its lock and hidden files; removed when it is finished."""
TRACES = {"train": "trace/program.pt.trace.json.gz", "infer": "trace/evaluation.pt.trace.json.gz"}
"""Paths of a script's traces in the run's directory, until they are renamed after their cases.

The second one is of the evaluations inside of a training.
"""
CHECKSUM = "checksum"
"""Key of run.json: the checksum of everything else in it. Checksums detect damage and prove no origin."""
TABLE_CHECKSUMS = "table_checksums"
"""Key of run.json: the checksum of each table's file, by table name."""


def trace_name(case: str) -> str:
    """Return the file name of a case's trace; the case's own name can be too long or invalid for files."""
    return f"{file_name(case)}.pt.trace.json.gz"


class BegunRun(NamedTuple):
    """A run's hidden directory, its manifest, and the lock that its writer holds."""

    directory: Path
    manifest: dict[str, Any]
    lock: int


def begin_run(out: Path, name: str, manifest: dict[str, Any]) -> BegunRun:
    """Create a new run's directory below `out`, with a manifest without cases and secrets."""
    name = redacted_text(name)
    safe_name = re.sub(r"[^A-Za-z0-9._+-]+", "_", name).strip("._") or "run"
    run_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{safe_name[:80]}-{secrets.token_hex(3)}"
    directory = out / f"{PARTIAL_PREFIX}{run_id}"
    whole = redacted({"schema_version": SCHEMA_VERSION, "run_id": run_id, "name": name, "status": "running",
             "hostname": os.uname().nodename, **manifest, "cases": []})
    with writing(out):
        if out.exists() and not out.is_dir():
            raise UserError(f"{out} is a file: choose a directory with --out")
        out.mkdir(parents=True, exist_ok=True)
        directory.mkdir()
    try:
        held = take_lock(directory)
        with writing(directory):
            (directory / PARTS).mkdir()
        write_manifest(directory, whole)
        with writing(out):
            sync(out)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return BegunRun(directory, whole, held)


def remove_unbegun(directory: Path) -> bool:
    """Remove a run's directory that was killed before its manifest was written; returns whether it was one."""
    directory = directory.resolve()
    if not directory.name.startswith(PARTIAL_PREFIX) or not directory.is_dir():
        return False
    with writing(directory):
        files = [path for path in directory.rglob("*") if not path.is_dir() and path.name != LOCK]
        if not all(map(is_begun, files)):
            return False
        held = take_lock(directory)
        shutil.rmtree(directory)
        os.close(held)
    return True


def take_lock(directory: Path) -> int:
    """Lock a run's directory until the returned descriptor is closed."""
    held = lock(directory / LOCK)
    if held is None:
        raise UserError(f"{directory} is being written by another process: wait for it, or end it")
    with writing(directory):
        os.ftruncate(held, 0)
        os.pwrite(held, str(os.getpid()).encode(), 0)
    return held


def writer_of(directory: Path) -> int | None:
    """Return the ID of the process that writes a run, or wrote it last; None if unknown."""
    try:
        return int((directory / LOCK).read_text())
    except (OSError, ValueError):
        return None


def write_manifest(directory: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest of a run with its checksum, atomically.

    Secrets and names of the user are replaced; texts become valid UTF-8.
    """
    text = json.dumps(sealed(valid_values(redacted(manifest))), indent=1, allow_nan=False)
    write_text(directory / "run.json", f"{text}\n")


def checksum(content: bytes) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def sealed(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest with the checksum of its content; adds `TABLE_CHECKSUMS` if it is absent.

    A sealed manifest has both keys, so that damage to one of them is detected.

    Raises:
        ValueError: a number is not finite.
    """
    whole = {TABLE_CHECKSUMS: {}} | manifest
    whole.pop(CHECKSUM, None)
    content = json.dumps(whole, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return whole | {CHECKSUM: checksum(content.encode())}


def is_changed(manifest: dict[str, Any]) -> bool:
    """Return whether a manifest does not match its checksums; those of early versions of charact have none."""
    return bool({CHECKSUM, TABLE_CHECKSUMS} & manifest.keys()) and (
        TABLE_CHECKSUMS not in manifest or manifest.get(CHECKSUM) != sealed(manifest)[CHECKSUM])
