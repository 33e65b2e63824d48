"""Reading and writing files: whole or not at all, by one process at a time, what the system refuses in one line."""

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

from charact.core.errors import UserError
from charact.core.text import label, valid_text

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP)
"""What some network file systems answer where they know no fsync, of directories above all."""
_LONGEST_NAME = 200
"""Bytes of a name, to which an ending can be added; file systems allow 255 in all."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the file system refuses while `path` is written into one line with its remedy.

    Raises:
        UserError: the disk is full, or the place is absent, not writable or out of order.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise UserError(f"no space left while writing {path}: free some, or choose another place") from error
        reason = (error.strerror or str(error)).lower()
        raise UserError(f"cannot write {path} ({reason}): choose another place") from error


@contextlib.contextmanager
def reading(path: Path | str, remedy: str | None = None) -> Iterator[None]:
    """Turn what the file system refuses while `path` is read into one line: a file that is not readable is not corrupt.

    Args:
        path: the file or directory.
        remedy: what to do about it; by default, to make it readable, or to name another.

    Raises:
        UserError: the path is absent, not readable or out of order.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:  # that of a reader such as gzip's: it is about the content
            raise
        reason = (error.strerror or str(error)).lower()
        forbidden = error.errno in (errno.EACCES, errno.EPERM)
        usual = "make it readable for your user, or name another" if forbidden else "name another"
        raise UserError(f"cannot read {path} ({reason}): {remedy or usual}") from error


def user_cache() -> Path:
    """The user's folder for what charact has measured and may measure again.

    Raises:
        RuntimeError: the user has no home directory.
    """
    folder = os.environ.get("XDG_CACHE_HOME", "")
    # The specification has a relative path ignored.
    return (Path(folder) if os.path.isabs(folder) else Path.home() / ".cache") / "charact"


def write_text(path: Path, text: str, *, force: bool = True) -> None:
    """Write a text file, whole or not at all; what UTF-8 cannot hold becomes escapes.

    Raises:
        UserError: the file exists and `force` is false, or it cannot be written.
    """
    _check_place(path, force=force)
    with whole(path) as temporary:
        temporary.write_text(valid_text(text), encoding="utf-8")


def check_writable(path: Path, *, force: bool, option: str | None = None) -> None:
    """Refuse a place that `write_text` could not write to, before the work that is to be written.

    Args:
        path: the place.
        force: whether a file that exists may be overwritten.
        option: of the command line, which names another place.

    Raises:
        UserError: the file exists and `force` is false, or it cannot be written.
    """
    _check_place(path, force=force, option=option)
    probe = _hidden(path)
    with writing(path):
        probe.touch()
        probe.unlink()


def _check_place(path: Path, *, force: bool, option: str | None = None) -> None:
    with writing(path):
        if path.is_dir():
            raise UserError(f"{path} is a directory: name a file")
        if path.exists() and not path.is_file():
            raise UserError(f"{path} is no regular file: name another")
        if path.exists() and not force:
            raise UserError(f"{path} exists: --force overwrites it"
                            + ("" if option is None else f", {option} names another file"))


def file_name(text: str) -> str:
    """A text as a file's name: printable, without slashes, and cut where it is too long, with a hash of the whole."""
    name = label(text).replace("/", "_")
    if len(name.encode()) <= _LONGEST_NAME:
        return name
    short = name.encode()[: _LONGEST_NAME - 17].decode(errors="ignore")
    return f"{short}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def _hidden(path: Path) -> Path:
    """A new name beside a file."""
    return path.with_name(f".{secrets.token_hex(8)}")


def is_begun(path: Path) -> bool:
    """Whether a file has the name of one that is being written; a kill leaves such a file behind."""
    return re.fullmatch(r"\.[0-9a-f]{16}", path.name) is not None


@contextlib.contextmanager
def whole(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Give a hidden place to write to, which becomes `path` when that went well and is removed when it did not.

    Args:
        path: the file to write.
        durable: whether the file is on the disk, and not only in memory, before it becomes `path`: so a power loss
            leaves the old file or the new one. False for what can be made again, where there are many.
    """
    temporary = _hidden(path)
    with writing(path):
        try:
            yield temporary
            if durable:
                sync(temporary)
            os.replace(temporary, path)
        except BaseException:
            # On a disk that broke, what was begun may be beyond reach; the first error is the one to tell.
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        if durable:
            sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk; it takes some 5 ms on an SSD.

    Raises:
        OSError: the disk is full or broken.
    """
    try:
        file = os.open(path, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise
    finally:
        os.close(file)


def lock(path: Path) -> int | None:
    """Lock a file until its descriptor, which is returned, is closed; None where another process has locked it.

    Processes that are forked meanwhile hold the lock, too.

    Raises:
        UserError: the file cannot be made, or the file system knows no locks.
    """
    with writing(path):
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return None
    return file


def release(file: int, path: Path) -> None:
    """Give a lock back by closing its descriptor, unless that has become another file's.

    It has where a program closed all descriptors, those that it did not open among them.
    """
    with contextlib.suppress(OSError):
        if os.path.samestat(os.fstat(file), os.stat(path)):
            os.close(file)
