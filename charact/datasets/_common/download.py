"""Resumable download of one file over HTTP, with locking and verification.

Received bytes are stored next to the target in a locked file with the suffix `.part`.
"""

import contextlib
import functools
import io
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urljoin, urlsplit

from charact.core.bounded_reading import check_declared
from charact.core.errors import UserError
from charact.core.files import try_lock, writing

TIMEOUT_S = 30.0
"""Longest time without data from a server (s)."""
WINDOW_S = 60.0
SLOWEST_BYTES = 2**13
"""Fewest bytes that a server must send in each window of WINDOW_S."""
_CHUNK_BYTES = 2**18
_OVERHEAD_BYTES = 2**24
"""Allowed bytes for headers and chunk sizes, in addition to the file."""
_MOST_REDIRECTIONS = 5
_MOST_SHORT_CONNECTIONS = 10
_SHORT_BYTES = 2**20
"""Size (bytes) below which an interrupted connection counts as short."""
_ELSEWHERE = "try later, or name a mirror with --source"

Progress = Callable[[int, int | None], None]
"""Callback with the number of received bytes, and the total if known."""


def check_address(address: str) -> None:
    """Check that an address is a valid HTTP address."""
    try:
        parts = urlsplit(address)
        right = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
    except ValueError:
        right = False
    if not right or not re.fullmatch(r"[!-~]+", address):
        raise UserError(f"'{address}' is not the address of a web server: write it as in https://mirror.org/mnist/")


def download(address: str, target: Path, num_bytes: int | None, most_bytes: int, verify: Callable[[Path], None],
             progress: Progress) -> None:
    """Download a file; `verify` checks it before it is renamed, and raises a UserError if it is wrong.

    An interrupted download is resumed as long as each connection brings more; received bytes are kept for the next
    call.

    Args:
        address: address of the file.
        target: path of the file.
        num_bytes: its size if known; no more is read.
        most_bytes: limit of its size if it is unknown.
        verify: function that checks the file at a path.
        progress: callback with the number of received bytes.
    """
    part = target.with_name(f"{target.name}.part")
    transfer = _Transfer(address, num_bytes, most_bytes, progress)
    with writing(part):
        part.parent.mkdir(parents=True, exist_ok=True)
        with _locked(part) as file:
            try:
                transfer.fill(file)
                file.flush()
            except UserError:
                if not _length(file):
                    part.unlink()
                raise
            try:
                verify(part)
            except UserError:
                part.unlink()
                raise
            os.replace(part, target)


@contextlib.contextmanager
def _locked(part: Path) -> Iterator[BinaryIO]:
    """Open the file for appending, locked against other processes."""
    while True:
        with part.open("ab") as file:
            if not try_lock(file.fileno()):
                raise UserError(f"{part} is being written by another fetch: wait for its end")
            # Between opening and locking, another download may have renamed the file: then open it again.
            if _is_at(file, part):
                yield file
                return


def _is_at(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


class _CutError(Exception):
    """A connection that ended early."""


class _Transfer:
    """A download from an address into an open file."""

    def __init__(self, address: str, num_bytes: int | None, most_bytes: int, progress: Progress) -> None:
        self._address, self._num_bytes, self._progress = address, num_bytes, progress
        self._most_bytes = most_bytes if num_bytes is None else num_bytes

    def fill(self, file: BinaryIO) -> None:
        """Download the rest of the file, over several connections if needed."""
        longest = _length(file)
        num_short = 0
        while self._num_bytes is None or _length(file) != self._num_bytes:
            try:
                self._receive(file)
                return
            except _CutError as error:
                num_short += _length(file) - longest < _SHORT_BYTES
                if _length(file) <= longest or num_short > _MOST_SHORT_CONNECTIONS:
                    kept = f"after {_length(file):,} bytes, which are kept: fetch it again to resume"
                    raise UserError(f"{self._address}: {error} "
                                    f"{kept if _length(file) else f'at once: {_ELSEWHERE}'}") from error
                longest = _length(file)

    def _receive(self, file: BinaryIO) -> None:
        """Append the data of one connection; starts again from the beginning if the server does not resume."""
        had = _length(file)
        response = self._request(had)
        first, whole = _range(response)
        if first is None or first > had:
            response.close()
            if whole == had and self._num_bytes is None:
                return
            response = self._request(0)
            first, _ = _range(response)
            if first != 0:
                response.close()
                raise UserError(f"{self._address} does not start at its first byte: {_ELSEWHERE}")
        with response:
            total = self._num_bytes if response.length is None else first + response.length
            if self._num_bytes is not None and total != self._num_bytes:
                raise UserError(f"{self._address} has {total:,} bytes, {self._num_bytes:,} were published: name a "
                                "mirror with --source")
            elif total is not None:
                check_declared(total, self._address, self._most_bytes, "has")
            file.truncate(first)
            had = first
            for chunk in _chunks(response):
                file.write(chunk)
                had += len(chunk)
                self._progress(had, total)
                if had > self._most_bytes:
                    self._end_too_long(file)
                    return
            if total is not None and had < total:
                raise _CutError("the connection was cut")

    def _end_too_long(self, file: BinaryIO) -> None:
        """Stop an endless stream; a file of known length is already wrong."""
        if self._num_bytes is None:
            had = _length(file)
            file.truncate(0)
            check_declared(had, self._address, self._most_bytes, "has at least")

    def _request(self, first: int) -> Any:
        """Return a response with the file from byte `first`, the whole file, or an error that there is no such byte.

        Redirections are followed here, because urllib reads their whole bodies and allows https to http.
        """
        address = self._address
        for _ in range(_MOST_REDIRECTIONS + 1):
            response = self._open(address, first)
            if response.status not in _REDIRECTIONS:
                return response
            response.close()
            address = self._next(address, response.headers.get("Location"))
        raise UserError(f"{self._address} cannot be fetched (it has too many redirections): {_ELSEWHERE}")

    def _next(self, address: str, location: str | None) -> str:
        try:
            there = urljoin(address, location or "")
            check_address(there)
        except (ValueError, UserError) as error:
            raise UserError(f"{self._address} cannot be fetched (it is redirected to an invalid address): "
                            f"{_ELSEWHERE}") from error
        if urlsplit(address).scheme == "https" and urlsplit(there).scheme != "https":
            raise UserError(f"{self._address} cannot be fetched (it is redirected from https to http, where "
                            f"others could change it): {_ELSEWHERE}")
        return there

    def _open(self, address: str, first: int) -> Any:
        headers = {"User-Agent": "charact"} | ({"Range": f"bytes={first}-"} if first else {})
        opener = urllib.request.OpenerDirector()
        # Only handlers of HTTP, without files, FTP and redirections.
        most_bytes = 2 * self._most_bytes + _OVERHEAD_BYTES
        for handler in (urllib.request.ProxyHandler(), urllib.request.UnknownHandler(), _Handler(most_bytes),
                        urllib.request.HTTPDefaultErrorHandler(), urllib.request.HTTPErrorProcessor()):
            opener.add_handler(handler)
        try:
            return opener.open(urllib.request.Request(address, headers=headers), timeout=TIMEOUT_S)
        except urllib.error.HTTPError as error:
            if error.code in _REDIRECTIONS or (error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and first):
                return error
            error.close()
            raise UserError(f"{self._address} cannot be fetched ({error.code} {_one_line(error.reason)}): "
                            f"{_ELSEWHERE}") from error
        except (OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            message = _one_line(getattr(reason, "strerror", None) or reason).lower()
            raise UserError(f"{self._address} cannot be reached ({message}): {_ELSEWHERE}") from error


_REDIRECTIONS = (301, 302, 303, 307, 308)


class _PacedStream(io.RawIOBase):
    """A server's stream with a minimum rate in each time window, and a limit on its total size.

    A socket's timeout covers a single read: a server that sends single bytes could keep the connection open for days.
    And Python reads endless headers and trailers.
    """

    def __init__(self, stream: Any, most_bytes: int) -> None:
        self._stream, self._left_bytes = stream, most_bytes
        self._began, self._num_bytes = time.monotonic(), 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer; returns the number of bytes.

        Raises:
            TimeoutError: the server is silent or too slow.
            OSError: the connection is interrupted, or the server sends too much.
        """
        num_bytes = int(self._stream.readinto(buffer))
        self._left_bytes -= num_bytes
        self._num_bytes += num_bytes
        if self._left_bytes < 0:
            raise OSError("more bytes than the file has")
        if num_bytes and time.monotonic() - self._began > WINDOW_S:
            if self._num_bytes < SLOWEST_BYTES:
                raise TimeoutError(f"fewer than {SLOWEST_BYTES:,} bytes in {WINDOW_S:g} s")
            self._began, self._num_bytes = time.monotonic(), 0
        return num_bytes

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()
        super().close()


class _Response(HTTPResponse):
    def __init__(self, most_bytes: int, sock: Any, **options: Any) -> None:
        super().__init__(sock, **options)
        self.fp = io.BufferedReader(_PacedStream(self.fp.detach(), most_bytes))


def _connecting(kind: type[HTTPConnection], most_bytes: int) -> Callable[..., HTTPConnection]:
    """Return a function that opens a connection with `_PacedStream` responses."""
    def connect(host: str, **options: Any) -> HTTPConnection:
        connection = kind(host, **options)
        connection.response_class = functools.partial(_Response, most_bytes)  # type: ignore[assignment]
        return connection

    return connect


class _Handler(urllib.request.AbstractHTTPHandler):
    """Opens HTTP and HTTPS connections with `_PacedStream` responses."""

    http_request = https_request = urllib.request.AbstractHTTPHandler.do_request_

    def __init__(self, most_bytes: int) -> None:
        super().__init__()
        self._most_bytes = most_bytes

    def http_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(_connecting(HTTPConnection, self._most_bytes), req)

    def https_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(_connecting(HTTPSConnection, self._most_bytes), req)


def _length(file: BinaryIO) -> int:
    file.flush()
    return os.fstat(file.fileno()).st_size


def _one_line(message: object) -> str:
    return " ".join(str(message).split())[:200]


def _range(response: Any) -> tuple[int | None, int | None]:
    """Return the first byte of a response, None if it has no part of the file, and the file's length if known."""
    sent = re.match(r"bytes (?:(\d{1,18})-\d+|\*)/(\d{1,18})?", response.headers.get("Content-Range", ""))
    whole = int(sent[2]) if sent and sent[2] else None
    if response.status == HTTPStatus.PARTIAL_CONTENT:
        return (int(sent[1]) if sent and sent[1] else None), whole
    return (0 if response.status == HTTPStatus.OK else None), whole


def _chunks(response: HTTPResponse) -> Iterator[bytes]:
    try:
        while chunk := response.read1(_CHUNK_BYTES):
            yield chunk
    except TimeoutError as error:
        message = f"no answer for {TIMEOUT_S:g} s" if str(error) == "timed out" else str(error)
        raise _CutError(message) from error
    except (OSError, HTTPException, ValueError) as error:
        raise _CutError("the connection was cut") from error
