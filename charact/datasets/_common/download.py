"""Download of one file over HTTP, of limited size, which gets its name when it is verified.

`requests` speaks to the server. Redirections are followed here: it would read their bodies, which may be endless, and
would follow one from https to http.
"""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import urljoin, urlsplit

from charact.core.bounded_reading import check_declared
from charact.core.errors import UserError
from charact.core.files import atomic_write, is_begun, writing

if TYPE_CHECKING:
    import requests

TIMEOUT_S = 30.0
"""Longest time without data from a server (s)."""
_KILLED_S = 60.0
"""Age of an unfinished file, without anything new, at which its fetch is gone (s)."""
_CHUNK_BYTES = 2**18
_MOST_REDIRECTIONS = 5
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

    Reading stops once `num_bytes`, or `most_bytes` if the size is unknown, are exceeded.
    """
    import requests  # here, since few commands need it

    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        for left in filter(is_begun, target.parent.iterdir()):  # by a fetch that was killed, unless it goes on
            if time.time() - left.stat().st_mtime > _KILLED_S:
                left.unlink()
        with atomic_write(target) as part:
            try:
                with requests.Session() as session, part.open("wb") as file:
                    _receive(_answer(session, address), address, file, num_bytes, most_bytes, progress)
            except requests.ConnectTimeout as error:
                raise UserError(f"{address} cannot be reached (timed out): {_ELSEWHERE}") from error
            except (requests.RequestException, ValueError) as error:  # ValueError: of an address that a server sent
                raise _failed(address, _reason(error)) from error
            verify(part)


def _answer(session: "requests.Session", address: str) -> "requests.Response":
    """Return the answer with the file."""
    place = address
    for _ in range(_MOST_REDIRECTIONS + 1):
        # Without compression, of which the length would be announced.
        response = session.get(place, stream=True, timeout=TIMEOUT_S, allow_redirects=False,
                               headers={"User-Agent": "charact", "Accept-Encoding": "identity"})
        if not response.is_redirect:
            if response.status_code != 200:
                raise _failed(address, f"{response.status_code} {_one_line(response.reason)}")
            return response
        response.close()
        try:
            there = urljoin(place, response.headers["Location"])
            check_address(there)
        except (ValueError, UserError) as error:
            raise _failed(address, "it is redirected to an invalid address") from error
        if urlsplit(place).scheme == "https" and urlsplit(there).scheme != "https":
            raise _failed(address, "it is redirected from https to http, where others could change it")
        place = there
    raise _failed(address, "it has too many redirections")


def _failed(address: str, reason: str) -> UserError:
    return UserError(f"{address} cannot be fetched ({reason}): {_ELSEWHERE}")


def _receive(response: "requests.Response", address: str, file: BinaryIO, num_bytes: int | None, most_bytes: int,
             progress: Progress) -> None:
    with response:
        announced = response.headers.get("Content-Length", "")
        total = int(announced) if re.fullmatch(r"\d{1,18}", announced) else num_bytes
        if num_bytes is not None and total != num_bytes:
            raise UserError(f"{address} has {total:,} bytes, {num_bytes:,} were published: name a mirror with --source")
        if num_bytes is None and total is not None:
            check_declared(total, address, most_bytes, "has")
        had = 0
        for chunk in response.iter_content(_CHUNK_BYTES):
            file.write(chunk)
            had += len(chunk)
            progress(had, total)
            if num_bytes is None:
                check_declared(had, address, most_bytes, "has at least")
            elif had > num_bytes:
                return  # which is wrong
        if total is not None and had < total:
            raise UserError(f"{address} was cut after {had:,} of {total:,} bytes: {_ELSEWHERE}")


def _reason(error: Exception) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror.lower()
        reason = getattr(cause, "reason", None) or next((one for one in cause.args if isinstance(one, Exception)), None)
        cause = reason if isinstance(reason, BaseException) else cause.__cause__ or cause.__context__
    return _one_line(error)


def _one_line(message: object) -> str:
    return " ".join(str(message).split())[:200]
