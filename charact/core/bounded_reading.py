"""Limits on the unpacked size of untrusted files.

An archive of a few megabytes can unpack to gigabytes. Every reader of compressed files uses this module: it checks the
declared size first, then the bytes that arrive, because a declared size can be wrong.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Protocol

from charact.core.errors import UserError

VARIABLE = "CHARACT_MAX_BYTES"
"""Environment variable that replaces every reader's default limit, e.g. `8GiB`."""
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,3})?)\s*(?:([KMGT])i?)?B?", re.IGNORECASE)
_asked: ContextVar[int | None] = ContextVar("asked", default=None)


class Readable(Protocol):
    """An object with a binary `read` method."""

    def read(self, size: int = ..., /) -> bytes:
        """Read up to `size` bytes; everything if it is negative."""


def parse_bytes(text: str, name: str) -> int:
    """Return the number of bytes of a text such as `500M`, `8GiB` or `1073741824`; K, M, G and T are powers of 1024.

    `name` is the option or variable with the size, for the message.
    """
    found = _SIZE.fullmatch(text.strip())
    size = int(float(found[1]) * _UNITS[(found[2] or "").upper()]) if found else 0
    if size < 1:
        raise UserError(f"{name}: '{text[:40]}' is not a size: write one such as 500MiB or 8GiB")
    return size


def limit_bytes(default: int) -> int:
    """Return the current limit: that of `limited_to`, else of the environment variable, else the reader's default."""
    if (asked := _asked.get()) is not None:
        return asked
    text = os.environ.get(VARIABLE)
    return parse_bytes(text, VARIABLE) if text else default


@contextmanager
def limited_to(num_bytes: int | None) -> Iterator[None]:
    """Set the limit of every reader within the block, as `--max-bytes` does; None keeps the defaults."""
    token = _asked.set(num_bytes)
    try:
        yield
    finally:
        _asked.reset(token)


def check_declared(num_bytes: int, path: object, default: int, verb: str = "unpacks to") -> None:
    """Refuse a file that declares more unpacked bytes than the limit.

    `default` is the limit unless `--max-bytes` or CHARACT_MAX_BYTES gives another. `path` and `verb`, what the file
    does with these bytes, are for the message.

    Raises:
        UserError: it is larger; the message says how to raise the limit.
    """
    limit = limit_bytes(default)
    if num_bytes > limit:
        raise UserError(f"{path} {verb} {_gib(num_bytes)}, the limit is {_gib(limit)}: "
                        f"if you trust it, raise the limit with {VARIABLE}={_next_gib(num_bytes)}GiB")


def read_all(stream: Readable, path: Path | str, default: int, verb: str = "unpacks to") -> bytes:
    """Read a stream to its end, up to the limit."""
    limit = limit_bytes(default)
    # In blocks: a decompressor may allocate the whole requested size at once.
    blocks, left = [], limit + 1
    while left and (block := stream.read(min(left, 1 << 20))):
        blocks.append(block)
        left -= len(block)
    if not left:
        raise _too_large(path, limit, verb)
    return b"".join(blocks)


class BoundedStream:
    """A binary stream that raises an error after more bytes than the limit were read.

    `path` is for messages; `default` is the limit in bytes if the user sets none.
    """

    def __init__(self, stream: Readable, path: Path | str, default: int) -> None:
        self._stream, self._path = stream, path
        self._limit = limit_bytes(default)
        self._num_bytes = 0

    def read(self, size: int = -1) -> bytes:
        """Read up to `size` bytes; everything if it is negative."""
        room = self._limit - self._num_bytes + 1
        block = self._stream.read(room if size < 0 else min(size, room))
        self._num_bytes += len(block)
        if self._num_bytes > self._limit:
            raise _too_large(self._path, self._limit, "unpacks to")
        return block


def _too_large(path: object, limit: int, verb: str) -> UserError:
    return UserError(f"{path} {verb} more than {_gib(limit)}: "
                     f"if you trust it, raise the limit with {VARIABLE}={_next_gib(4 * limit)}GiB")


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.1f} MiB"


def _next_gib(num_bytes: int) -> int:
    return -(-num_bytes // 2**30)
