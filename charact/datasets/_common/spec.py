"""Specification of data sets, and finding and verifying their published files."""

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from charact.core.bounded_reading import read_all
from charact.core.errors import UserError
from charact.core.files import reading

_REMEDY = "make it readable, or name another --data-dir"

Split = Literal["train", "valid", "test"]
Kind = Literal["image", "language_model", "translation", "cloze", "segmentation", "latent", "click"]
"""Type of a data set's samples; a workload reads one kind. The last three are synthetic only."""
Pictures = NDArray[np.uint8]
"""(N, H, W) gray or (N, 3, H, W) colour images."""
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class PublishedFile:
    """A published file; size and checksum are None if unknown."""

    name: str
    num_bytes: int | None
    checksum: str | None
    """SHA-256 in hexadecimal digits; MD5 if only that was published."""
    splits: tuple[Split, ...] = ()
    """Splits that need it when downloaded by `charact data fetch`; empty for an alternative form."""
    most_bytes: int = 2**26
    """Size limit in bytes if the size is unknown."""


def sha256(content: bytes) -> str:
    """Return the SHA-256 of a content, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def digest_path(path: Path) -> Path:
    """Return the path of the recorded SHA-256 of a downloaded file without a published checksum."""
    return path.with_name(f"{path.name}.sha256")


@dataclass(frozen=True, kw_only=True, eq=False)
class DatasetSpec:
    """A data set."""

    name: str
    description: str
    source: str
    """Address of its files, ending in a slash; for synthetic data, the generator."""
    kind: Kind | None
    """None for synthetic data, which have every kind."""
    splits: tuple[Split, ...]
    num_classes: int | None = None
    """Number of image classes; None if the workload decides, or if there are none."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredDatasetSpec(DatasetSpec):
    """A data set that is read from published files."""

    kind: Kind
    home: str
    """Folder of its files for `charact data fetch`, below the directory that the user names."""
    folders: tuple[str, ...] = ()
    """Other folders to search, in addition to the directory itself."""
    files: tuple[PublishedFile, ...]
    read: Callable[[Any, Path, Split], Any]
    """Function that returns the content of a split, given the spec, the directory and the split."""

    def load(self, directory: Path, split: Split) -> Any:
        """Return the content of a split."""
        with reading(directory, _REMEDY):
            if not directory.is_dir():
                raise UserError(f"{directory} is not a directory: name the one that holds {self.name} with --data-dir, "
                                f"or download it with charact data fetch {self.name}")
        return self.read(self, directory, split)

    def find(self, directory: Path, *names: str) -> tuple[Path, bytes]:
        """Return path and verified content of a file: the first of its alternative names that exists."""
        path = self.place(directory, *names)
        if path is None:
            folders = ", ".join((self.home, *self.folders))
            raise UserError(f"{self.name} needs {' or '.join(names)}, which {directory} and its folders {folders} "
                            f"lack: `charact data fetch {self.name}` downloads {self.source}{names[0]}")
        content, flaw = inspect(path, self.published(path.name))
        if flaw is not None:
            raise UserError(f"{path} is {flaw}: fetch it again from {self.source}")
        return path, content

    def place(self, directory: Path, *names: str) -> Path | None:
        """Return the path of the first of a file's alternative names that exists."""
        places = [directory, *(directory / folder for folder in (self.home, *self.folders))]
        for path in [place / name for name in names for place in places]:
            with reading(path, _REMEDY):
                if path.is_file():
                    return path
        return None

    def published(self, name: str) -> PublishedFile:
        """Return the published facts of a file."""
        return next(file for file in self.files if file.name == name)


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredImagesSpec(StoredDatasetSpec):
    """A data set of labelled images that is read from published files."""

    kind: Kind = "image"
    splits: tuple[Split, ...] = ("train", "test")
    num_classes: int
    num_pictures: dict[Split, int]

    def load(self, directory: Path, split: Split) -> tuple[Pictures, Labels]:
        """Return images and labels of a split, with their number checked."""
        images, labels = super().load(directory, split)
        again = f"fetch its files again from {self.source}"
        published = self.num_pictures[split]
        if not len(images) == len(labels) == published:
            raise UserError(f"{self.name} in {directory} has {len(images):,} images and {len(labels):,} labels for "
                            f"{split}, {published:,} were published: {again}")
        if not 0 <= labels.min() <= labels.max() < self.num_classes:
            raise UserError(f"{self.name} in {directory} has labels from {labels.min()} to {labels.max()}, "
                            f"{self.num_classes} classes were published: {again}")
        # torch warns about read-only arrays, such as views of immutable bytes.
        return np.require(images, requirements=["C", "W"]), labels


def inspect(path: Path, file: PublishedFile) -> tuple[bytes, str | None]:
    """Return a file's content and its difference from the published or the downloaded file; None if there is none.

    Reads at most the published size, or the limit if the size is unknown.
    """
    with reading(path, _REMEDY), path.open("rb") as stream:
        num_bytes = os.fstat(stream.fileno()).st_size
        if file.num_bytes is not None and num_bytes != file.num_bytes:
            kind = "truncated" if num_bytes < file.num_bytes else "foreign"
            return b"", f"{kind} ({num_bytes:,} bytes, published {file.num_bytes:,})"
        content = stream.read(num_bytes) if file.num_bytes else read_all(stream, path, file.most_bytes, "has")
    if file.checksum is not None:
        is_md5 = len(file.checksum) == 32
        checksum = hashlib.md5(content, usedforsecurity=False).hexdigest() if is_md5 else sha256(content)
        return content, None if checksum == file.checksum else (
            f"truncated or foreign ({'MD5' if is_md5 else 'SHA-256'} {checksum}, published {file.checksum})")
    if not has_digest(path):
        return content, None
    record = digest_path(path)
    with reading(record, _REMEDY), record.open("rb") as stream:
        recorded = stream.read(64).decode("ascii", "replace")
    if not re.fullmatch("[0-9a-f]{64}", recorded):
        return content, f"not verifiable, because its recorded SHA-256 in {record} is damaged"
    return content, None if sha256(content) == recorded else (
        f"changed after it was fetched (SHA-256 {sha256(content)}, recorded {recorded}); "
        f"if you replaced it, remove {record}")


def has_digest(path: Path) -> bool:
    """Return whether the SHA-256 of a downloaded file is recorded."""
    with reading(path, _REMEDY):
        return digest_path(path).is_file()
