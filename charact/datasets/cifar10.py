"""CIFAR-10: 32×32 colour images in 10 classes, in binary or pickled form.

A binary batch has records of one label byte and 3×32×32 bytes (red, green, blue planes); a pickled one is a dictionary
with the array `data` of such rows and the list `labels`. The binary form is preferred, and of each form the archive,
which is read without unpacking it on the disk.

A pickle may be of Python 2 (protocol 2) or of Python 3 (protocols 2 to 5) with any NumPy. Nothing is named but what
NumPy writes for arrays; the files are compared with their published checksums before.

Source: the formats' description on the dataset's home page; sizes and checksums from TensorFlow Datasets, Keras and
torchvision. "Restricting Globals" in the documentation of Python's `pickle`; `__reduce__` of NumPy's arrays and types.
"""

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from charact.core.archives import tar_files
from charact.core.errors import UserError
from charact.datasets._common.spec import Labels, Pictures, PublishedFile, Split, StoredImagesSpec

ARCHIVE = "cifar-10-binary.tar.gz"
BATCHES: dict[Split, tuple[str, ...]] = {
    "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    "test": ("test_batch.bin",),
}
PICKLED_ARCHIVE = "cifar-10-python.tar.gz"
PICKLED_BATCHES: dict[Split, tuple[str, ...]] = {
    split: tuple(name.removesuffix(".bin") for name in names) for split, names in BATCHES.items()
}
NUM_CLASSES = 10
PICTURE_SHAPE = (3, 32, 32)
RECORD_BYTES = 1 + 3 * 32 * 32
BATCH_PICTURES = 10_000
MOST_BYTES = 2**28
"""Limit of the unpacked size of a split's files, some 155 million bytes."""
_NAMES = {("_codecs", "encode"), ("numpy", "dtype"), ("numpy", "ndarray"), ("numpy.core.multiarray", "_reconstruct"),
          ("numpy.core.numeric", "_frombuffer")}


def parse_batch(content: bytes, path: Path) -> tuple[Pictures, Labels]:
    """Return images (N, 3, 32, 32) and labels (N,) of a batch file's content; `path` is for messages."""
    if not content or len(content) % RECORD_BYTES:
        raise UserError(f"{path} has {len(content):,} bytes, not a multiple of {RECORD_BYTES:,}-byte records: "
                        "fetch it again")
    records = np.frombuffer(content, np.uint8).reshape(-1, RECORD_BYTES)
    return records[:, 1:].reshape(-1, *PICTURE_SHAPE), records[:, 0].astype(np.int64)


def read_pickle(content: bytes, path: Path) -> dict[str, Any]:
    """Return the dictionary of texts, numbers, lists and arrays in a pickle; `path` is for messages.

    Keys are texts. Texts of Python 2 are bytes of unknown encoding, decoded as Latin-1.
    """
    try:
        values = _Unpickler(io.BytesIO(content), encoding="latin-1").load()
        return {key if isinstance(key, str) else key.decode("latin-1"): value for key, value in values.items()}
    except UserError as error:
        raise UserError(f"{path} is rejected: its pickle {error}: fetch it again") from error
    except Exception as error:  # damaged pickles raise all kinds of errors
        raise UserError(f"{path} is a damaged pickle ({type(error).__name__}): fetch it again") from error


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return what a pickle names; NumPy 2 has its core elsewhere."""
        if (module.replace("numpy._core", "numpy.core"), name) not in _NAMES:
            raise UserError(f"names '{' '.join(f'{module} {name}'[:60].split())}'")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def parse_pickled_batch(content: bytes, path: Path) -> tuple[Pictures, Labels]:
    """Return images (N, 3, 32, 32) and labels (N,) of a pickled batch's content; `path` is for messages."""
    batch = read_pickle(content, path)
    labels, rows = batch.get("labels"), batch.get("data")
    if not isinstance(rows, np.ndarray) or not isinstance(labels, list):
        raise UserError(f"{path} has no array 'data' and list 'labels': fetch it again")
    if not labels or rows.shape != (len(labels), RECORD_BYTES - 1) or rows.dtype != np.uint8:
        raise UserError(f"{path} has {len(labels):,} labels and a different number of rows of {RECORD_BYTES - 1:,} "
                        "bytes: fetch it again")
    if not all(type(label) is int and 0 <= label < NUM_CLASSES for label in labels):
        raise UserError(f"{path} has labels that are not from 0 to {NUM_CLASSES - 1}: fetch it again")
    return rows.reshape(-1, *PICTURE_SHAPE), np.array(labels, np.int64)


class Form(NamedTuple):
    """One of the two forms: its archive, its unpacked files, and a parser."""

    archive: str
    batches: dict[Split, tuple[str, ...]]
    parse: Callable[[bytes, Path], tuple[Pictures, Labels]]

    def first(self, split: Split) -> tuple[str, str]:
        """Return the names of which one exists if the form is present."""
        return self.archive, self.batches[split][0]


FORMS = (Form(ARCHIVE, BATCHES, parse_batch), Form(PICKLED_ARCHIVE, PICKLED_BATCHES, parse_pickled_batch))


def read_split(spec: StoredImagesSpec, directory: Path, split: Split) -> tuple[Pictures, Labels]:
    """Return images (N, 3, 32, 32) and labels (N,) of a split."""
    path, content = spec.find(directory, *(name for form in FORMS for name in form.first(split)))
    form = next(form for form in FORMS if path.name in form.first(split))
    names = form.batches[split]
    if path.name == form.archive:
        contents = tar_files(content, names, path, MOST_BYTES)
        batches = [(path / name, contents[name]) for name in names]
    else:
        batches = [(path, content), *(spec.find(directory, form.archive, name) for name in names[1:])]
    images, labels = zip(*(form.parse(batch, place) for place, batch in batches), strict=True)
    return np.concatenate(images), np.concatenate(labels)


_PICKLED_MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}

DATASETS = [
    StoredImagesSpec(
        name="cifar10", description="objects and animals, 32×32 colour, 50,000 + 10,000 images",
        source="https://www.cs.toronto.edu/~kriz/", num_classes=NUM_CLASSES,
        num_pictures={split: len(names) * BATCH_PICTURES for split, names in BATCHES.items()},
        home="cifar10",
        folders=tuple(home + folder for home in ("", "cifar10/") for folder in ("cifar-10-batches-bin",
                                                                                "cifar-10-batches-py")),
        files=(
            PublishedFile(ARCHIVE, 170_052_171, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                          splits=("train", "test")),
            *(PublishedFile(name, BATCH_PICTURES * RECORD_BYTES, None) for names in BATCHES.values() for name in names),
            PublishedFile(PICKLED_ARCHIVE, 170_498_071,
                          "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"),
            *(PublishedFile(name, None, md5) for name, md5 in _PICKLED_MD5.items()),
        ),
        read=read_split,
    ),
]
