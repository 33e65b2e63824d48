"""Reading of untrusted compressed files and archives, within the limits of `charact.core.bounded_reading`.

Nothing is unpacked onto the disk, and only requested members are held in memory.
"""

import gzip
import io
import itertools
import struct
import zipfile
import zlib
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from charact.core.bounded_reading import BoundedStream, check_declared, read_all
from charact.core.errors import UserError

MOST_STREAM_BYTES = 2**31
"""Limit of the unpacked size of a whole .tar.gz."""
_MOST_MEMBERS = 100_000
MOST_DIRECTORY_BYTES = 2**23
"""Limit of a zip archive's directory, some 80,000 members: Python keeps an object for each."""
_BLOCK = 512
_CHUNK = 2**20
_REGULAR = (b"0", b"\0", b"7")
_DAMAGES = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, ValueError, RuntimeError, LookupError)
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


def tar_files(archive: bytes, names: Container[str], path: Path, default: int) -> dict[str, bytes]:
    """Return the contents of a .tar.gz's files with these names, in any folder of the archive.

    Python's `tarfile` is not used: it holds headers of any length in memory, and its patterns for them take quadratic
    time (CVE-2024-6232). Links, devices and sparse files count as absent.

    Args:
        archive: content of the file.
        names: names of the files, without folders.
        path: the file, for messages.
        default: limit in bytes of the contents together.
    """
    contents: dict[str, bytes] = {}
    with _reading(path), gzip.open(io.BytesIO(archive)) as unpacked:
        stream = BoundedStream(unpacked, path, MOST_STREAM_BYTES)
        for number in itertools.count():
            member = _next_member(stream)
            if member is None:
                break
            if number == _MOST_MEMBERS:
                raise ValueError("too many members")
            kept = member.is_regular and member.name in names
            if kept:
                if member.name in contents:
                    raise UserError(f"{path} holds {member.name} twice: fetch it again")
                check_declared(member.num_bytes + sum(map(len, contents.values())), path, default)
            content = _take(stream, member.num_bytes, keep=kept)
            _take(stream, -member.num_bytes % _BLOCK, keep=False)
            if kept:
                contents[member.name] = content
    return contents


class _Member(NamedTuple):
    name: str
    """Without its folder."""
    num_bytes: int
    is_regular: bool


def is_tar_header(block: bytes) -> bool:
    """Return whether a file that begins with these bytes is a tar archive: its header's checksum is right."""
    try:
        return len(block) >= _BLOCK and _tar_number(block[148:156]) == sum(block[:148]) + 256 + sum(block[156:_BLOCK])
    except ValueError:
        return False


def _next_member(stream: BoundedStream) -> _Member | None:
    """Return the next member of a tar archive, whose content follows; None at its end."""
    header = _take(stream, _BLOCK, keep=True, may_end=True)
    if not header.strip(b"\0"):
        return None
    if not is_tar_header(header):
        raise ValueError("a header's checksum is wrong")
    name = header[:100].partition(b"\0")[0].decode("utf-8", "replace")
    return _Member(name.rpartition("/")[2], _tar_number(header[124:136]), header[156:157] in _REGULAR)


def _tar_number(field: bytes) -> int:
    """Return a number of a tar header: octal digits, or big-endian after a byte 0x80.

    Raises:
        ValueError: it is neither.
    """
    if field[0] == 0x80:
        return int.from_bytes(field[1:])
    digits = field.strip(b" \0")
    if not all(digit in b"01234567" for digit in digits):
        raise ValueError("a number is not octal")
    return int(digits or b"0", 8)


def _take(stream: BoundedStream, num_bytes: int, *, keep: bool, may_end: bool = False) -> bytes:
    """Read a number of bytes; returns them if `keep` is true.

    Raises:
        EOFError: there are fewer, and `may_end` is false or the read was partial.
    """
    blocks, left = [], num_bytes
    while left and (block := stream.read(min(left, _CHUNK))):
        left -= len(block)
        if keep:
            blocks.append(block)
    if left and not (may_end and left == num_bytes):
        raise EOFError
    return b"".join(blocks)


def zip_file(archive: bytes, name: str, path: Path, default: int) -> bytes | None:
    """Return the content of a zip archive's file with this name, in any folder; None if there is none.

    Args:
        archive: content of the archive.
        name: name of the file, without folders.
        path: the archive, for messages.
        default: limit of the content in bytes.
    """
    with _reading(path), open_zip(io.BytesIO(archive)) as file:
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
    return None


def open_zip(file: IO[bytes]) -> zipfile.ZipFile:
    """Return a reader of a zip archive whose list of members is no longer than MOST_DIRECTORY_BYTES.

    Raises:
        zipfile.BadZipFile: the file is no zip archive, or its list of members is longer; damage can raise others, too.
    """
    return zipfile.ZipFile(_ShortReads(file))


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
