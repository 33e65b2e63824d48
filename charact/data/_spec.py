"""What a dataset is, and how its published files are found and verified."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from charact.errors import UserError
from charact.files import reading

_REMEDY = "make it readable, or name another --data-dir"

Split = Literal["train", "valid", "test"]
Kind = Literal["image", "language_model", "translation", "cloze"]
"""What a dataset's samples are; a workload reads one kind."""
Pictures = NDArray[np.uint8]
"""(N, H, W) grey or (N, 3, H, W) coloured."""
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class PublishedFile:
    """A file as it was published; None where its size or checksum was not."""

    name: str
    num_bytes: int | None
    md5: str | None
    splits: tuple[Split, ...] = ()
    """Splits that need it, in the form that `charact data fetch` downloads; none of an alternative form."""

    def flaw(self, content: bytes) -> str | None:
        """What distinguishes a content from the published one; None where nothing does that was published."""
        if self.num_bytes is not None and len(content) != self.num_bytes:
            difference = "truncated" if len(content) < self.num_bytes else "foreign"
            return f"{difference} ({len(content):,} bytes, published {self.num_bytes:,})"
        md5 = None if self.md5 is None else hashlib.md5(content, usedforsecurity=False).hexdigest()
        return None if md5 == self.md5 else f"truncated or foreign (md5 {md5}, published {self.md5})"


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
        content = read_file(path)
        flaw = self.published(path.name).flaw(content)
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


def read_file(path: Path) -> bytes:
    """Content of a file.

    Raises:
        UserError: it cannot be read.
    """
    with reading(path, _REMEDY):
        return path.read_bytes()
