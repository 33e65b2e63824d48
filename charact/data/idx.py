"""The MNIST family: grey 28×28 pictures in 10 classes, in IDX files.

An IDX file is: two zero bytes, the element type (8: unsigned byte), the number of dimensions, each dimension as a
big-endian 32-bit integer, the elements. The compressed form is preferred where both lie there, since only its checksum
was published. Source: the format's description on the MNIST home page; sizes and checksums as torchvision has them.
"""

import gzip
import math
import struct
from pathlib import Path

import numpy as np

from charact.data._spec import Labels, Pictures, PublishedFile, Split, StoredImagesSpec
from charact.errors import UserError

NUM_PICTURES: dict[Split, int] = {"train": 60_000, "test": 10_000}
SIDE = 28
_UNSIGNED_BYTE = 8
_PREFIXES: dict[Split, str] = {"train": "train", "test": "t10k"}


def parse_idx(content: bytes, num_dimensions: int, path: Path) -> Pictures:
    """Array of unsigned bytes from the content of an IDX file; `path` is for messages.

    Raises:
        UserError: the header is not that of such an array, or the elements are not as many as it says.
    """
    header_bytes = 4 + 4 * num_dimensions
    if len(content) < header_bytes or content[:4] != bytes((0, 0, _UNSIGNED_BYTE, num_dimensions)):
        raise UserError(f"{path} is no IDX file of bytes in {num_dimensions} dimensions: fetch it again")
    shape = struct.unpack(f">{num_dimensions}I", content[4:header_bytes])
    num_elements = len(content) - header_bytes
    if num_elements == 0 or num_elements != math.prod(shape):
        announced = "×".join(map(str, shape))
        raise UserError(f"{path} holds {num_elements:,} elements, its header announces {announced}: fetch it again")
    return np.frombuffer(content, np.uint8, offset=header_bytes).reshape(shape)


def read_split(spec: StoredImagesSpec, directory: Path, split: Split) -> tuple[Pictures, Labels]:
    """Pictures (N, 28, 28) and labels (N,) of a split.

    Raises:
        UserError: a file is missing, truncated or foreign.
    """
    images = _read(spec, directory, f"{_PREFIXES[split]}-images-idx3-ubyte", num_dimensions=3)
    labels = _read(spec, directory, f"{_PREFIXES[split]}-labels-idx1-ubyte", num_dimensions=1)
    return images, labels.astype(np.int64)


def _read(spec: StoredImagesSpec, directory: Path, name: str, num_dimensions: int) -> Pictures:
    path, content = spec.find(directory, f"{name}.gz", name)
    return parse_idx(gzip.decompress(content) if path.suffix == ".gz" else content, num_dimensions, path)


def _files(split: Split, images: tuple[int | None, str], labels: tuple[int | None, str]) -> list[PublishedFile]:
    """Files of a split, from the sizes and checksums of the compressed form; the raw form's sizes follow."""
    images_name, labels_name = f"{_PREFIXES[split]}-images-idx3-ubyte", f"{_PREFIXES[split]}-labels-idx1-ubyte"
    return [
        PublishedFile(f"{images_name}.gz", *images, splits=(split,)),
        PublishedFile(f"{labels_name}.gz", *labels, splits=(split,)),
        PublishedFile(images_name, 16 + NUM_PICTURES[split] * SIDE**2, None),
        PublishedFile(labels_name, 8 + NUM_PICTURES[split], None),
    ]


def _spec(name: str, title: str, description: str, source: str, files: list[PublishedFile]) -> StoredImagesSpec:
    return StoredImagesSpec(
        name=name, description=description, source=source, num_classes=10, num_pictures=NUM_PICTURES,
        home=name, folders=("raw", f"{name}/raw", title, f"{title}/raw"), files=tuple(files), read=read_split,
    )


DATASETS = [
    _spec(
        "mnist", "MNIST", "handwritten digits, grey 28×28, 60,000 + 10,000 pictures",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        _files("train", (9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"), (28_881, "d53e105ee54ea40749a09fcbcd1e9432"))
        + _files("test", (1_648_877, "9fb629c4189551a2d022fa330f9573f3"), (4_542, "ec29112dd5afa0611ce80d1b7f02629c")),
    ),
    _spec(
        "fashion_mnist", "FashionMNIST", "articles of clothing, grey 28×28, 60,000 + 10,000 pictures",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        _files("train", (26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"), (29_515, "25c81989df183df01b3e8a0aad5dffbe"))
        + _files("test", (None, "bef4ecab320f06d8554ea6380940ec79"), (5_148, "bb300cfdad3c16e7a12a480ee83cd310")),
    ),
    _spec(
        "kmnist", "KMNIST", "cursive Japanese characters, grey 28×28, 60,000 + 10,000 pictures",
        "http://codh.rois.ac.jp/kmnist/dataset/kmnist/",
        _files("train", (18_165_135, "bdb82020997e1d708af4cf47b453dcf7"), (None, "e144d726b3acfaa3e44228e80efcd344"))
        + _files("test", (None, "5c965bf0a639b31b8f53240b1b52f4d7"), (None, "7320c461ea6c1c855c0b718fb2a4b134")),
    ),
]
