"""What a dataset is, and how its published files are found and verified."""

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from charact.errors import UserError

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
    folders: tuple[str, ...]
    """Where its files may lie below the directory that the user names, besides that directory itself."""
    files: tuple[PublishedFile, ...]
    read: Callable[[Any, Path, Split], Any]
    """Content of a split, as its kind has it, from the spec, the directory and the files that `find` gives."""

    def load(self, directory: Path, split: Split) -> Any:
        """Content of a split: what `read` makes of it.

        Raises:
            UserError: there is no such directory, or a file is missing, truncated or foreign.
        """
        with _reading(directory):
            if not directory.is_dir():
                raise UserError(f"{directory} is not a directory: name the one that holds {self.name} with --data-dir")
        return self.read(self, directory, split)

    def find(self, directory: Path, *names: str) -> tuple[Path, bytes]:
        """Place and verified content of a file: the first of its alternative names that is there.

        Raises:
            UserError: none is there, or it differs from the published one.
        """
        path = self._first(directory, names)
        if path is None:
            raise UserError(f"{self.name} needs {' or '.join(names)}, which {directory} and its folders "
                            f"{', '.join(self.folders)} do not hold: fetch {self.source}{names[0]}")
        with _reading(path):
            content = path.read_bytes()
        self._verify(path, content)
        return path, content

    def has(self, directory: Path, *names: str) -> bool:
        """Whether a file of one of these names is there."""
        return self._first(directory, names) is not None

    def _first(self, directory: Path, names: tuple[str, ...]) -> Path | None:
        places = [directory, *(directory / folder for folder in self.folders)]
        for path in [place / name for name in names for place in places]:
            with _reading(path):
                if path.is_file():
                    return path
        return None

    def _verify(self, path: Path, content: bytes) -> None:
        published = next(file for file in self.files if file.name == path.name)
        again = f"fetch it again from {self.source}"
        if published.num_bytes is not None and len(content) != published.num_bytes:
            difference = "truncated" if len(content) < published.num_bytes else "foreign"
            raise UserError(f"{path} is {difference} ({len(content):,} bytes, published {published.num_bytes:,}): "
                            f"{again}")
        if published.md5 is not None:
            md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
            if md5 != published.md5:
                raise UserError(f"{path} is truncated or foreign (md5 {md5}, published {published.md5}): {again}")


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


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn what the file system refuses into one line with its remedy."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UserError(f"cannot read {path} ({reason}): make it readable, or name another --data-dir") from error
