"""MNIST and similar data sets: 28×28 gray images in 10 classes, in IDX files.

An IDX file is: two zero bytes, the element type (8: unsigned byte), the number of dimensions, each dimension as a
big-endian 32-bit integer, the elements. The compressed form is preferred, because only its checksum was published.
Source: the format's description on the MNIST home page; sizes and checksums from TensorFlow Datasets and torchvision.
"""

import math
import struct
from pathlib import Path

import numpy as np

from charact.core.archives import gunzip
from charact.core.errors import UserError
from charact.datasets._common.spec import Labels, Pictures, PublishedFile, Split, StoredImagesSpec

NUM_PICTURES: dict[Split, int] = {"train": 60_000, "test": 10_000}
SIDE = 28
MOST_BYTES = 2**27
"""Limit of the unpacked size of a file; the largest has 47 million bytes."""
_UNSIGNED_BYTE = 8
_PREFIXES: dict[Split, str] = {"train": "train", "test": "t10k"}


def parse_idx(content: bytes, num_dimensions: int, path: Path) -> Pictures:
    """Return the array of unsigned bytes in the content of an IDX file; `path` is for messages.

    Raises:
        UserError: it is no such file, or has another size than it declares.
    """
    header_bytes = 4 + 4 * num_dimensions
    if len(content) < header_bytes or content[:4] != bytes((0, 0, _UNSIGNED_BYTE, num_dimensions)):
        raise UserError(f"{path} is not an IDX file of bytes in {num_dimensions} dimensions: fetch it again")
    shape = struct.unpack(f">{num_dimensions}I", content[4:header_bytes])
    num_elements = len(content) - header_bytes
    if num_elements == 0 or num_elements != math.prod(shape):
        declared = "×".join(map(str, shape))
        raise UserError(f"{path} has {num_elements:,} elements, but its header declares {declared}: fetch it again")
    return np.frombuffer(content, np.uint8, offset=header_bytes).reshape(shape)


def read_split(spec: StoredImagesSpec, directory: Path, split: Split) -> tuple[Pictures, Labels]:
    """Return images (N, 28, 28) and labels (N,) of a split."""
    images = _read(spec, directory, f"{_PREFIXES[split]}-images-idx3-ubyte", num_dimensions=3)
    labels = _read(spec, directory, f"{_PREFIXES[split]}-labels-idx1-ubyte", num_dimensions=1)
    return images, labels.astype(np.int64)


def _read(spec: StoredImagesSpec, directory: Path, name: str, num_dimensions: int) -> Pictures:
    path, content = spec.find(directory, f"{name}.gz", name)
    return parse_idx(gunzip(content, path, MOST_BYTES) if path.suffix == ".gz" else content, num_dimensions, path)


def _files(split: Split, images: tuple[int, str], labels: tuple[int, str]) -> list[PublishedFile]:
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
        "mnist", "MNIST", "handwritten digits, 28×28 gray, 60,000 + 10,000 images",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        _files("train", (9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
               (28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"))
        + _files("test", (1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
                 (4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6")),
    ),
    _spec(
        "fashion_mnist", "FashionMNIST", "articles of clothing, 28×28 gray, 60,000 + 10,000 images",
        # The publisher's repository, because the bucket has no https.
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        _files("train", (26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
               (29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"))
        + _files("test", (4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
                 (5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5")),
    ),
    _spec(
        "kmnist", "KMNIST", "cursive Japanese characters, 28×28 gray, 60,000 + 10,000 images",
        "https://codh.rois.ac.jp/kmnist/dataset/kmnist/",
        _files("train", (18_165_135, "51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4"),
               (29_497, "e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17"))
        + _files("test", (3_041_136, "edd7a857845ad6bb1d0ba43fe7e794d164fe2dce499a1694695a792adfac43c5"),
                 (5_120, "20bb9a0ef54c7db3efc55a92eef5582c109615df22683c380526788f98e42a1c")),
    ),
]
