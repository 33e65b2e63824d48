"""Reading of untrusted compressed files and archives, within the limits of `charact.core.bounded_reading`.

Nothing is unpacked onto the disk, and only requested members are held in memory.
"""

import gzip
import io
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from charact.core.bounded_reading import BoundedStream, check_declared, read_all
from charact.core.errors import UserError

MOST_STREAM_BYTES = 2**31
"""Limit of the unpacked size of a whole .tar.gz."""
_MOST_MEMBERS = 100_000
MOST_DIRECTORY_BYTES = 2**23
"""Limit of a zip archive's directory, some 80,000 members: Python keeps an object for each."""
_DAMAGES = (zipfile.BadZipFile, tarfile.TarError, zlib.error, struct.error, EOFError, OSError, ValueError, RuntimeError,
            LookupError)
"""Exceptions that Python's readers raise for damaged archives."""


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except _DAMAGES as error:
        raise UserError(f"{path} is a damaged archive ({type(error).__name__}): fetch it again") from error


def gunzip(content: bytes, path: Path, default: int) -> bytes:
    """Return the unpacked content of a .gz file; `path` is for messages, `default` the limit in bytes."""
    with _reading(path), gzip.open(io.BytesIO(content)) as stream:
        return read_all(stream, path, default)


def tar_files(archive: bytes, names: Sequence[str], path: Path, default: int) -> dict[str, bytes]:
    """Return the contents of a .tar.gz's files with these names, in any folder of the archive.

    `path` is for messages; `default` limits the bytes of the contents together.

    Raises:
        UserError: the archive is damaged, or lacks a file; links, devices and sparse files count as absent.
    """
    contents: dict[str, bytes] = {}
    with _reading(path), gzip.open(io.BytesIO(archive)) as unpacked:
        stream: Any = BoundedStream(unpacked, path, MOST_STREAM_BYTES)
        with tarfile.open(fileobj=stream, mode="r|") as tar:
            for number, member in enumerate(tar):
                if number == _MOST_MEMBERS or member.size < 0:
                    raise ValueError("too many members, or a negative size")
                name = member.name.rpartition("/")[2]
                if not member.isreg() or member.issparse() or name not in names:
                    continue
                if name in contents:
                    raise UserError(f"{path} holds {name} twice: fetch it again")
                check_declared(member.size + sum(map(len, contents.values())), path, default)
                reader = tar.extractfile(member)
                assert reader is not None  # it is a file
                contents[name] = reader.read()
                if len(contents[name]) < member.size:
                    raise EOFError
    for name in names:
        if name not in contents:
            raise UserError(f"{path} has no {name}: fetch it again")
    return contents


def zip_file(archive: bytes, name: str, path: Path, default: int) -> bytes:
    """Return the content of a zip archive's file with this name, in any folder.

    `path` is for messages; `default` limits the bytes of the content.

    Raises:
        UserError: the archive is damaged, or lacks the file.
    """
    with _reading(path), zipfile.ZipFile(_ShortReads(io.BytesIO(archive))) as file:
        members = [member for member in file.infolist() if member.filename.rpartition("/")[2] == name]
        if len(members) > 1:
            raise UserError(f"{path} holds {name} twice: fetch it again")
        for member in members:
            check_declared(member.file_size, path, default)
            # Python's readers of the other compressions have no limit.
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise zipfile.BadZipFile("a rare compression")
            with file.open(member) as stream:
                return read_all(stream, path, default)
    raise UserError(f"{path} has no {name}: fetch it again")


class _ShortReads:
    """A file that limits each read to MOST_DIRECTORY_BYTES, because zipfile reads the list of members in one read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        limit = MOST_DIRECTORY_BYTES
        content = self._file.read(limit + 1 if size < 0 else min(size, limit + 1))
        if len(content) > limit:
            raise zipfile.BadZipFile("its list of members is too long")
        return content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
