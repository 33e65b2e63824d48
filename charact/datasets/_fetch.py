"""Verification and download of the published files of stored data sets.

A download is of limited size, and gets its name when it is verified. `requests` speaks to the server. Redirections are
followed here: it would read their bodies, which may be endless, and would follow one from https to http.
"""

import os
import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urljoin, urlsplit

from charact.core.bounded_reading import check_declared, limit_bytes
from charact.core.errors import UserError
from charact.core.files import atomic_write, is_begun, write_text, writing
from charact.datasets._common.registry import find_dataset
from charact.datasets._common.spec import (
    Kind,
    PublishedFile,
    Split,
    StoredDatasetSpec,
    digest_path,
    has_digest,
    inspect,
    sha256,
)

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
_SAMPLES: dict[Kind, tuple[str, Callable[[Any], int]]] = {
    "image": ("images", lambda content: len(content[1])),
    "language_model": ("words", lambda content: len(content[0])),
    # The split of pairs is known only after too long ones are left out.
    "translation": ("pairs in all splits and of all lengths", len),
    "cloze": ("questions", lambda content: len(content[0])),
}


def stored_dataset(name: str, source: str | None = None) -> StoredDatasetSpec:
    """Return a stored data set by name; `source` replaces the published address."""
    spec = find_dataset(name)
    if not isinstance(spec, StoredDatasetSpec):
        raise UserError(f"{name} data are generated: they have no files")
    if source is None:
        return spec
    check_address(source)
    return replace(spec, source=source if source.endswith("/") else f"{source}/")


def file_state(spec: StoredDatasetSpec, file: PublishedFile, directory: Path) -> str:
    """Return how a file compares with the published one, without parsing it."""
    path = spec.place(directory, file.name)
    if path is None:
        return "absent"
    try:
        _, flaw = inspect(path, file)
        if flaw is not None:
            return f"wrong: {flaw}"
        if file.checksum is not None:
            return "correct, by its checksum"
        if has_digest(path):
            return "unchanged since it was fetched, by its recorded checksum"
    except UserError as error:
        return f"wrong: {error}"
    return "present" if file.num_bytes is None else "present, with the correct size"


def split_samples(spec: StoredDatasetSpec, directory: Path, split: Split) -> str:
    """Return the number of samples of a split, as text."""
    unit, count = _SAMPLES[spec.kind]
    return f"{count(spec.load(directory, split)):,} {unit}"


def fetch_file(
    spec: StoredDatasetSpec, file: PublishedFile, directory: Path, progress: Progress
) -> tuple[Path, str | None]:
    """Return a file's path, and its previous state: None if it was present and correct, else it is downloaded."""
    address = spec.source + file.name

    def verify(part: Path) -> None:
        try:
            content = prove(spec, file, part)
        except UserError as error:
            raise UserError(f"{address} is not the published file and was deleted: {error}") from error
        if file.checksum is None:
            # The digest first: a file with an outdated digest counts as wrong, and is fetched again.
            write_text(digest_path(target), f"{sha256(content)}  {file.name}\n")

    place = spec.place(directory, file.name)
    before = "absent"
    if place is not None:
        try:
            prove(spec, file, place)
        except UserError as error:
            before = f"wrong: {error}"
        else:
            return place, None
    target = place or directory / spec.home / file.name
    download(address, target, file.num_bytes, limit_bytes(file.most_bytes), verify, progress)
    return target, before


def prove(spec: StoredDatasetSpec, file: PublishedFile, path: Path) -> bytes:
    """Compare a file with the published one and return its content.

    Without a published checksum, the first of its splits is read.
    """
    content, flaw = inspect(path, file)
    if flaw is not None:
        raise UserError(f"{file.name} is {flaw}")
    if file.checksum is None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / file.name).symlink_to(path.resolve())
            try:
                spec.load(Path(folder), file.splits[0])
            except UserError as error:
                raise UserError(str(error).replace(f"{folder}{os.sep}", "")) from error
    return content


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
