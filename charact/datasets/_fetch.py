"""Verification and download of the published files of stored data sets."""

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from charact.core.bounded_reading import limit_bytes
from charact.core.errors import UserError
from charact.core.files import write_text
from charact.datasets._common.download import Progress, check_address, download
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
