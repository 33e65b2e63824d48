"""One file over HTTP: resumed where it was cut, by one process at a time, in its place only when whole and right.

What arrives is kept beside the target in a file of the same name and `.part`, which is locked while it is written.
"""

import contextlib
import fcntl
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from charact.errors import UserError
from charact.files import writing

TIMEOUT_S = 30.0
"""Longest silence of a server."""
_CHUNK_BYTES = 2**18
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


def download(address: str, target: Path, num_bytes: int | None, verify: Callable[[Path], None], told: Told) -> None:
    """Fetch a file; `verify` looks at it before it gets its place, and raises a UserError where it is wrong.

    A connection that is cut is taken up again as long as each time brings more; what came is kept for the next call.

    Raises:
        UserError: the server does not answer with the file, what it sent is wrong (it is deleted then), the file cannot
            be written, or another process is fetching it.
    """
    part = target.with_name(f"{target.name}.part")
    with writing(part):
        part.parent.mkdir(parents=True, exist_ok=True)
        with _locked(part) as file:
            try:
                _fill(file, address, num_bytes, told)
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


def _fill(file: BinaryIO, address: str, num_bytes: int | None, told: Told) -> None:
    """Bring the file to its full length, over as many connections as that takes."""
    longest = _length(file)
    while num_bytes is None or _length(file) != num_bytes:
        try:
            _receive(file, address, num_bytes, told)
            return
        except _CutError as error:
            if _length(file) <= longest:
                kept = f"after {_length(file):,} bytes, which are kept: fetch it again to go on"
                raise UserError(f"{address}: {error} {kept if _length(file) else f'at once: {_ELSEWHERE}'}") from error
            longest = _length(file)


class _CutError(Exception):
    """A connection that ended early."""


def _receive(file: BinaryIO, address: str, num_bytes: int | None, told: Told) -> None:
    """Append what one connection brings; the file begins anew where the server does not go on from its end."""
    had = _length(file)
    response = _request(address, had)
    first, whole = _range(response)
    if first is None or first > had:
        response.close()
        if whole == had:
            return
        response, first = _request(address, 0), 0
    with response:
        total = num_bytes if response.length is None else first + response.length
        if num_bytes is not None and total != num_bytes:
            raise UserError(f"{address} has {total:,} bytes, {num_bytes:,} were published: name a mirror with --source")
        file.truncate(first)
        had = first
        for chunk in _chunks(response):
            file.write(chunk)
            had += len(chunk)
            told(had, total)
            if num_bytes is not None and had > num_bytes:
                return  # a stream that need not ever end, and is wrong already
        if total is not None and had < total:
            raise _CutError("the connection was cut")


def _length(file: BinaryIO) -> int:
    file.flush()
    return os.fstat(file.fileno()).st_size


def _request(address: str, first: int) -> Any:
    """Response that brings the file from byte `first` on, from its beginning, or says that there is no such byte."""
    headers = {"User-Agent": "charact"} | ({"Range": f"bytes={first}-"} if first else {})
    opener = urllib.request.OpenerDirector()
    # Those of urllib's that do not read files or speak FTP, which a server might send us to.
    for handler in (urllib.request.ProxyHandler, urllib.request.UnknownHandler, urllib.request.HTTPHandler,
                    urllib.request.HTTPSHandler, urllib.request.HTTPDefaultErrorHandler,
                    urllib.request.HTTPRedirectHandler, urllib.request.HTTPErrorProcessor):
        opener.add_handler(handler())
    try:
        return opener.open(urllib.request.Request(address, headers=headers), timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        if error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and first:
            return error
        error.close()
        raise UserError(f"{address} cannot be had ({error.code} {_one_line(error.reason)}): {_ELSEWHERE}") from error
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        said = _one_line(getattr(reason, "strerror", None) or reason).lower()
        raise UserError(f"{address} cannot be reached ({said}): {_ELSEWHERE}") from error


def _one_line(said: object) -> str:
    return " ".join(str(said).split())[:200]


def _range(response: Any) -> tuple[int | None, int | None]:
    """First byte that a response brings, None where it brings none of the file, and the file's length if it is told."""
    told = re.match(r"bytes (?:(\d+)-\d+|\*)/(\d+)?", response.headers.get("Content-Range", ""))
    whole = int(told[2]) if told and told[2] else None
    if response.status == HTTPStatus.PARTIAL_CONTENT:
        return (int(told[1]) if told and told[1] else None), whole
    return (0 if response.status == HTTPStatus.OK else None), whole


def _chunks(response: HTTPResponse) -> Iterator[bytes]:
    try:
        while chunk := response.read1(_CHUNK_BYTES):
            yield chunk
    except TimeoutError as error:
        raise _CutError(f"no answer for {TIMEOUT_S:g} s") from error
    except (OSError, HTTPException) as error:
        raise _CutError("the connection was cut") from error
