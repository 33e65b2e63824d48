"""One file over HTTP: resumed where it was cut, by one process at a time, in its place only when whole and right.

What arrives is kept beside the target in a file of the same name and `.part`, which is locked while it is written.
"""

import contextlib
import fcntl
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
from charact.core.files import writing

TIMEOUT_S = 30.0
"""Longest silence of a server."""
WINDOW_S = 60.0
SLOWEST_BYTES = 2**13
"""Bytes that a server sends at least within each window of WINDOW_S."""
_CHUNK_BYTES = 2**18
_OVERHEAD_BYTES = 2**24
"""What headers and the sizes of chunks may take besides the file."""
_MOST_REDIRECTIONS = 5
_MOST_SHORT_CONNECTIONS = 10
_SHORT_BYTES = 2**20
"""A connection that was cut after fewer bytes is short."""
_ELSEWHERE = "try later, or name a mirror with --source"

Told = Callable[[int, int | None], None]
"""Is told how many bytes are there, and of how many where that is known."""


def check_address(address: str) -> None:
    """Refuse an address that is not one of HTTP.

    Raises:
        UserError: it has another scheme, no host, a port that is none, or letters that must be escaped.
    """
    try:
        parts = urlsplit(address)
        right = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
    except ValueError:
        right = False
    if not right or not re.fullmatch(r"[!-~]+", address):
        raise UserError(f"'{address}' is no address of a web server: write it as in https://mirror.org/mnist/")


def download(address: str, target: Path, num_bytes: int | None, most_bytes: int, verify: Callable[[Path], None],
             told: Told) -> None:
    """Fetch a file; `verify` looks at it before it gets its place, and raises a UserError where it is wrong.

    A connection that is cut is taken up again as long as each time brings more; what came is kept for the next call.

    Args:
        address: of the file.
        target: its place.
        num_bytes: its size, where that is known; no more is taken.
        most_bytes: limit of its size where that is not known.
        verify: is given the place of what came.
        told: is told how many bytes are there.

    Raises:
        UserError: the server does not answer with the file, what it sent is wrong (it is deleted then), the file cannot
            be written, or another process is fetching it.
    """
    part = target.with_name(f"{target.name}.part")
    transfer = _Transfer(address, num_bytes, most_bytes, told)
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
    """The file, to be appended to, which no other process holds."""
    while True:
        with part.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UserError(f"{part} is being written by another fetch: wait for its end") from error
            # Between opening and locking, another fetch may have put the file into its place: then begin anew.
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
    """A file's way from its address into an open file."""

    def __init__(self, address: str, num_bytes: int | None, most_bytes: int, told: Told) -> None:
        self._address, self._num_bytes, self._told = address, num_bytes, told
        self._most_bytes = most_bytes if num_bytes is None else num_bytes

    def fill(self, file: BinaryIO) -> None:
        """Bring the file to its full length, over as many connections as that takes."""
        longest = _length(file)
        num_short = 0
        while self._num_bytes is None or _length(file) != self._num_bytes:
            try:
                self._receive(file)
                return
            except _CutError as error:
                num_short += _length(file) - longest < _SHORT_BYTES
                if _length(file) <= longest or num_short > _MOST_SHORT_CONNECTIONS:
                    kept = f"after {_length(file):,} bytes, which are kept: fetch it again to go on"
                    raise UserError(f"{self._address}: {error} "
                                    f"{kept if _length(file) else f'at once: {_ELSEWHERE}'}") from error
                longest = _length(file)

    def _receive(self, file: BinaryIO) -> None:
        """Append what one connection brings; the file begins anew where the server does not go on from its end."""
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
                raise UserError(f"{self._address} does not begin at its beginning: {_ELSEWHERE}")
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
                self._told(had, total)
                if had > self._most_bytes:
                    self._end_too_long(file)
                    return
            if total is not None and had < total:
                raise _CutError("the connection was cut")

    def _end_too_long(self, file: BinaryIO) -> None:
        """End a stream that need not ever end. Of a known length, it is wrong already."""
        if self._num_bytes is None:
            had = _length(file)
            file.truncate(0)
            check_declared(had, self._address, self._most_bytes, "has at least")

    def _request(self, first: int) -> Any:
        """Response that brings the file from byte `first` on, from its beginning, or says that there is no such byte.

        Redirections are followed here: Python's own reads their whole bodies, and would go from https to http.
        """
        address = self._address
        for _ in range(_MOST_REDIRECTIONS + 1):
            response = self._open(address, first)
            if response.status not in _REDIRECTIONS:
                return response
            response.close()
            address = self._next(address, response.headers.get("Location"))
        raise UserError(f"{self._address} cannot be had (it is redirected again and again): {_ELSEWHERE}")

    def _next(self, address: str, location: str | None) -> str:
        try:
            there = urljoin(address, location or "")
            check_address(there)
        except (ValueError, UserError) as error:
            raise UserError(f"{self._address} cannot be had (it is redirected to what is no address of a web server): "
                            f"{_ELSEWHERE}") from error
        if urlsplit(address).scheme == "https" and urlsplit(there).scheme != "https":
            raise UserError(f"{self._address} cannot be had (it is redirected from https to http, where others could "
                            f"change it): {_ELSEWHERE}")
        return there

    def _open(self, address: str, first: int) -> Any:
        headers = {"User-Agent": "charact"} | ({"Range": f"bytes={first}-"} if first else {})
        opener = urllib.request.OpenerDirector()
        # Those of urllib's that read no files, speak no FTP and follow no redirection.
        most_bytes = 2 * self._most_bytes + _OVERHEAD_BYTES
        for handler in (urllib.request.ProxyHandler(), urllib.request.UnknownHandler(), _HTTPHandler(most_bytes),
                        _HTTPSHandler(most_bytes), urllib.request.HTTPDefaultErrorHandler(),
                        urllib.request.HTTPErrorProcessor()):
            opener.add_handler(handler)
        try:
            return opener.open(urllib.request.Request(address, headers=headers), timeout=TIMEOUT_S)
        except urllib.error.HTTPError as error:
            if error.code in _REDIRECTIONS or (error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and first):
                return error
            error.close()
            raise UserError(f"{self._address} cannot be had ({error.code} {_one_line(error.reason)}): "
                            f"{_ELSEWHERE}") from error
        except (OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            said = _one_line(getattr(reason, "strerror", None) or reason).lower()
            raise UserError(f"{self._address} cannot be reached ({said}): {_ELSEWHERE}") from error


_REDIRECTIONS = (301, 302, 303, 307, 308)


class _PacedStream(io.RawIOBase):
    """What a server sends, as long as it sends enough in each window of time, and not too much in all.

    A socket's own timeout is that of one read: a server that sends a byte now and then would hold the line for days.
    And Python reads headers and trailers that never end.
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
            OSError: the connection is cut, or the server sends too much.
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
    """How urllib makes a connection whose answers are paced."""
    def connect(host: str, **options: Any) -> HTTPConnection:
        connection = kind(host, **options)
        connection.response_class = functools.partial(_Response, most_bytes)  # type: ignore[assignment]
        return connection

    return connect


class _HTTPHandler(urllib.request.HTTPHandler):
    def __init__(self, most_bytes: int) -> None:
        super().__init__()
        self._most_bytes = most_bytes

    def http_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(_connecting(HTTPConnection, self._most_bytes), req)


class _HTTPSHandler(urllib.request.HTTPSHandler):
    def __init__(self, most_bytes: int) -> None:
        super().__init__()
        self._most_bytes = most_bytes

    def https_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(_connecting(HTTPSConnection, self._most_bytes), req)


def _length(file: BinaryIO) -> int:
    file.flush()
    return os.fstat(file.fileno()).st_size


def _one_line(said: object) -> str:
    return " ".join(str(said).split())[:200]


def _range(response: Any) -> tuple[int | None, int | None]:
    """First byte that a response brings, None where it brings none of the file, and the file's length if it is told."""
    told = re.match(r"bytes (?:(\d{1,18})-\d+|\*)/(\d{1,18})?", response.headers.get("Content-Range", ""))
    whole = int(told[2]) if told and told[2] else None
    if response.status == HTTPStatus.PARTIAL_CONTENT:
        return (int(told[1]) if told and told[1] else None), whole
    return (0 if response.status == HTTPStatus.OK else None), whole


def _chunks(response: HTTPResponse) -> Iterator[bytes]:
    try:
        while chunk := response.read1(_CHUNK_BYTES):
            yield chunk
    except TimeoutError as error:
        said = f"no answer for {TIMEOUT_S:g} s" if str(error) == "timed out" else str(error)
        raise _CutError(said) from error
    except (OSError, HTTPException, ValueError) as error:
        raise _CutError("the connection was cut") from error
