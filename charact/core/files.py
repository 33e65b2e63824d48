"""Atomic writing, locking and reading of files, with one-line errors."""

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

from charact.core.errors import UserError
from charact.core.text import label, valid_text

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP)
"""Errors of some network file systems without fsync, mostly for directories."""
_LONGEST_NAME = 200
"""Longest name in bytes, before a suffix is added; file systems allow 255 in all."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert errors of the file system while `path` is written into one line with a remedy."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise UserError(f"no space left while writing {path}: free some, or choose another place") from error
        reason = (error.strerror or str(error)).lower()
        raise UserError(f"cannot write {path} ({reason}): choose another place") from error


@contextlib.contextmanager
def reading(path: Path | str, remedy: str | None = None) -> Iterator[None]:
    """Convert errors of the file system while `path` is read into one line: an unreadable file is not corrupt.

    The remedy is by default to make it readable, or to name another.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:  # from a reader such as gzip's: the content is damaged
            raise
        reason = (error.strerror or str(error)).lower()
        forbidden = error.errno in (errno.EACCES, errno.EPERM)
        usual = "make it readable for your user, or name another" if forbidden else "name another"
        raise UserError(f"cannot read {path} ({reason}): {remedy or usual}") from error


def user_cache() -> Path:
    """Return the user's cache folder for measurements that can be repeated.

    Raises:
        RuntimeError: the user has no home directory.
    """
    folder = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification requires that relative paths are ignored.
    return (Path(folder) if os.path.isabs(folder) else Path.home() / ".cache") / "charact"


def write_text(path: Path, text: str, *, force: bool = True) -> None:
    """Write a text file atomically; texts that are not valid UTF-8 are escaped."""
    _check_place(path, force=force)
    with atomic_write(path) as temporary:
        temporary.write_text(valid_text(text), encoding="utf-8")


def check_writable(path: Path, *, force: bool, option: str | None = None) -> None:
    """Check, before the work, that `write_text` can write to a path.

    `option` is the command-line option that names another path.
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
    """Return a text as a file name: printable, without slashes; a long one is cut and gets a hash of the whole."""
    import hashlib  # here: few names are long

    name = label(text).replace("/", "_")
    if len(name.encode()) <= _LONGEST_NAME:
        return name
    short = name.encode()[: _LONGEST_NAME - 17].decode(errors="ignore")
    return f"{short}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def _hidden(path: Path) -> Path:
    return path.with_name(f".{os.urandom(8).hex()}")


def is_begun(path: Path) -> bool:
    """Return whether a file has the name of an unfinished write; a kill leaves such a file behind."""
    return re.fullmatch(r"\.[0-9a-f]{16}", path.name) is not None


@contextlib.contextmanager
def atomic_write(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield a hidden path to write to, which is renamed to `path` on success and removed on failure.

    With `durable`, the file is synced to disk before it is renamed, to survive a power loss: not needed for files that
    can be recreated.
    """
    temporary = _hidden(path)
    with writing(path):
        try:
            yield temporary
            if durable:
                sync(temporary)
            os.replace(temporary, path)
        except BaseException:
            # On a broken disk, removal may fail, too; report the first error.
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        if durable:
            sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on disk; takes some 5 ms on an SSD.

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
    """Lock a file until the returned descriptor is closed; None if another process has locked it.

    Forked processes hold the lock, too.
    """
    with writing(path):
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        if try_lock(file):
            return file
        os.close(file)
    return None


def try_lock(file: int) -> bool:
    """Try to lock an open file until its descriptor is closed in all processes; return whether it succeeded."""
    from filelock import lock_descriptor  # here, since a watched program imports this module

    return lock_descriptor(file, blocking=False)


def release(file: int, path: Path) -> None:
    """Release a lock by closing its descriptor, unless the descriptor now belongs to another file.

    A program that closes all descriptors closes this one, too, and its number can then be reused.
    """
    with contextlib.suppress(OSError):
        if os.path.samestat(os.fstat(file), os.stat(path)):
            os.close(file)
