"""The published files of a stored dataset: which are there and right, and fetching those that are not."""

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from charact.core.bounded_reading import limit_bytes
from charact.core.errors import UserError
from charact.core.files import write_text
from charact.datasets._common.download import Told, check_address, download
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

_SAMPLES: dict[Kind, tuple[str, Callable[[Any], int]]] = {
    "image": ("pictures", lambda content: len(content[1])),
    "language_model": ("words", lambda content: len(content[0])),
    # Which pairs are in a split is told after those too long are left out.
    "translation": ("pairs in all splits and of all lengths", len),
    "cloze": ("questions", lambda content: len(content[0])),
}


def stored_dataset(name: str, source: str | None = None) -> StoredDatasetSpec:
    """Dataset of a name that has files; a source is fetched from in place of the published address.

    Raises:
        UserError: there is none, its data are made up, or the source is no address.
    """
    spec = find_dataset(name)
    if not isinstance(spec, StoredDatasetSpec):
        raise UserError(f"{name} data are made up: there are no files of them")
    if source is None:
        return spec
    check_address(source)
    return replace(spec, source=source if source.endswith("/") else f"{source}/")


def file_state(spec: StoredDatasetSpec, file: PublishedFile, directory: Path) -> str:
    """How a file compares with what was published of it, without reading what it holds."""
    path = spec.place(directory, file.name)
    if path is None:
        return "absent"
    try:
        _, flaw = inspect(path, file)
        if flaw is not None:
            return f"wrong: {flaw}"
        if file.checksum is not None:
            return "right, by its checksum"
        if has_digest(path):
            return "as it was fetched, by its recorded checksum"
    except UserError as error:
        return f"wrong: {error}"
    return "there" if file.num_bytes is None else "there, of the right size"


def split_samples(spec: StoredDatasetSpec, directory: Path, split: Split) -> str:
    """How many samples a split has, in words.

    Raises:
        UserError: it cannot be read.
    """
    unit, count = _SAMPLES[spec.kind]
    return f"{count(spec.load(directory, split)):,} {unit}"


def fetch_file(spec: StoredDatasetSpec, file: PublishedFile, directory: Path, told: Told) -> tuple[Path, str | None]:
    """Place of a file, and what it was before: None where it is there and right, else it is fetched.

    Raises:
        UserError: it cannot be fetched, or what was sent is wrong.
    """
    address = spec.source + file.name

    def verify(part: Path) -> None:
        try:
            content = prove(spec, file, part)
        except UserError as error:
            raise UserError(f"{address} is not the published file, what it sent is deleted: {error}") from error
        if file.checksum is None:
            # First the digest: a file whose record is that of an older one counts as wrong, and is fetched again.
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
    download(address, target, file.num_bytes, limit_bytes(file.most_bytes), verify, told)
    return target, before


def prove(spec: StoredDatasetSpec, file: PublishedFile, path: Path) -> bytes:
    """Compare a file with the published one; where no checksum was published, by reading the first of its splits.

    Returns its content.

    Raises:
        UserError: they differ.
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
