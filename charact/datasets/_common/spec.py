"""What a dataset is, and how its published files are found and verified."""

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
Kind = Literal["image", "language_model", "translation", "cloze"]
"""What a dataset's samples are; a workload reads one kind."""
Pictures = NDArray[np.uint8]
"""(N, H, W) grey or (N, 3, H, W) coloured."""
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class PublishedFile:
    """A file as it was published; None where its size or checksum is not known."""

    name: str
    num_bytes: int | None
    checksum: str | None
    """Its SHA-256 in hexadecimal digits; its MD5 where only that was published."""
    splits: tuple[Split, ...] = ()
    """Splits that need it, in the form that `charact data fetch` downloads; none of an alternative form."""
    most_bytes: int = 2**26
    """Limit where the size is not known."""

    def flaw(self, content: bytes) -> str | None:
        """What distinguishes a content from the published one; None where nothing does that was published."""
        if self.num_bytes is not None and len(content) != self.num_bytes:
            return self.wrong_size(len(content))
        if self.checksum is None:
            return None
        is_md5 = len(self.checksum) == 32
        checksum = hashlib.md5(content, usedforsecurity=False).hexdigest() if is_md5 else sha256(content)
        return None if checksum == self.checksum else (
            f"truncated or foreign ({'MD5' if is_md5 else 'SHA-256'} {checksum}, published {self.checksum})")

    def wrong_size(self, num_bytes: int) -> str:
        """How a size that is not the published one is wrong."""
        assert self.num_bytes is not None
        return (f"{'truncated' if num_bytes < self.num_bytes else 'foreign'} ({num_bytes:,} bytes, published "
                f"{self.num_bytes:,})")


def sha256(content: bytes) -> str:
    """SHA-256 of a content, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def digest_path(path: Path) -> Path:
    """Where the SHA-256 of a fetched file is recorded whose checksum was not published."""
    return path.with_name(f"{path.name}.sha256")


@dataclass(frozen=True, kw_only=True, eq=False)
class DatasetSpec:
    """A dataset by its name."""

    name: str
    description: str
    source: str
    """Address that its files are fetched from, ending in a slash; for made-up data, what makes them."""
    kind: Kind | None
    """None for made-up data, which are of every kind."""
    splits: tuple[Split, ...]
    num_classes: int | None = None
    """Number of kinds of pictures; None where the workload decides, or where there are none."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredDatasetSpec(DatasetSpec):
    """A dataset that is read from published files."""

    kind: Kind
    home: str
    """Folder below the directory that the user names, where `charact data fetch` puts its files."""
    folders: tuple[str, ...] = ()
    """Where they may lie besides, and besides that directory itself."""
    files: tuple[PublishedFile, ...]
    read: Callable[[Any, Path, Split], Any]
    """Content of a split, as its kind has it, from the spec, the directory and the files that `find` gives."""

    def load(self, directory: Path, split: Split) -> Any:
        """Content of a split: what `read` makes of it.

        Raises:
            UserError: there is no such directory, or a file is missing, truncated or foreign.
        """
        with reading(directory, _REMEDY):
            if not directory.is_dir():
                raise UserError(f"{directory} is not a directory: name the one that holds {self.name} with --data-dir, "
                                f"or get it with charact data fetch {self.name}")
        return self.read(self, directory, split)

    def find(self, directory: Path, *names: str) -> tuple[Path, bytes]:
        """Place and verified content of a file: the first of its alternative names that is there.

        Raises:
            UserError: none is there, or it differs from the published one.
        """
        path = self.place(directory, *names)
        if path is None:
            folders = ", ".join((self.home, *self.folders))
            raise UserError(f"{self.name} needs {' or '.join(names)}, which {directory} and its folders {folders} do "
                            f"not hold: `charact data fetch {self.name}` gets {self.source}{names[0]}")
        content, flaw = inspect(path, self.published(path.name))
        if flaw is not None:
            raise UserError(f"{path} is {flaw}: fetch it again from {self.source}")
        return path, content

    def place(self, directory: Path, *names: str) -> Path | None:
        """Where the first of a file's alternative names is that is there at all."""
        places = [directory, *(directory / folder for folder in (self.home, *self.folders))]
        for path in [place / name for name in names for place in places]:
            with reading(path, _REMEDY):
                if path.is_file():
                    return path
        return None

    def published(self, name: str) -> PublishedFile:
        """What was published of a file."""
        return next(file for file in self.files if file.name == name)


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredImagesSpec(StoredDatasetSpec):
    """A dataset of labelled pictures that is read from published files."""

    kind: Kind = "image"
    splits: tuple[Split, ...] = ("train", "test")
    num_classes: int
    num_pictures: dict[Split, int]

    def load(self, directory: Path, split: Split) -> tuple[Pictures, Labels]:
        """Pictures and labels of a split, counted.

        Raises:
            UserError: there is no such directory, or a file is missing, truncated or foreign.
        """
        images, labels = super().load(directory, split)
        again = f"fetch its files again from {self.source}"
        published = self.num_pictures[split]
        if not len(images) == len(labels) == published:
            raise UserError(f"{self.name} in {directory} has {len(images):,} pictures and {len(labels):,} labels for "
                            f"{split}, {published:,} were published: {again}")
        if not 0 <= labels.min() <= labels.max() < self.num_classes:
            raise UserError(f"{self.name} in {directory} has labels from {labels.min()} to {labels.max()}, "
                            f"{self.num_classes} classes were published: {again}")
        # torch warns of arrays that must not be written to, as views of immutable bytes are.
        return np.require(images, requirements=["C", "W"]), labels


def inspect(path: Path, file: PublishedFile) -> tuple[bytes, str | None]:
    """Return a file's content and how it differs from the published one, or from what was fetched; None if it does not.

    No more is read than was published, or than the limit where the size is not known.

    Raises:
        UserError: the file cannot be read, or exceeds the limit.
    """
    with reading(path, _REMEDY), path.open("rb") as stream:
        num_bytes = os.fstat(stream.fileno()).st_size
        if file.num_bytes is None:
            content = read_all(stream, path, file.most_bytes, "has")
        elif num_bytes != file.num_bytes:
            return b"", file.wrong_size(num_bytes)
        else:
            content = stream.read(num_bytes)
    return content, file.flaw(content) or _change(path, file, content)


def _change(path: Path, file: PublishedFile, content: bytes) -> str | None:
    """How a content differs from what was fetched."""
    record = digest_path(path)
    if file.checksum is not None or not has_digest(path):
        return None
    with reading(record, _REMEDY), record.open("rb") as stream:
        recorded = stream.read(64).decode("ascii", "replace")
    if not re.fullmatch("[0-9a-f]{64}", recorded):
        return f"not comparable with what was fetched, since {record} is damaged, which holds its SHA-256"
    return None if sha256(content) == recorded else (
        f"not what was fetched (SHA-256 {sha256(content)}, recorded {recorded}); if you replaced it, remove {record}")


def has_digest(path: Path) -> bool:
    """Whether the SHA-256 of a fetched file is recorded.

    Raises:
        UserError: the directory cannot be read.
    """
    with reading(path, _REMEDY):
        return digest_path(path).is_file()
