"""CIFAR-10 in its binary form: coloured 32×32 pictures in 10 classes. The pickled form runs code, so it is not read.

A batch file holds records of one label byte and 3×32×32 bytes (red, green, blue planes). The archive is preferred where
its unpacked files lie beside it, since only its checksum was published; it is read without unpacking it on the disk.
Source: the format's description on the dataset's home page; size and checksum as torchvision has them.
"""

import io
import tarfile
from pathlib import Path, PurePosixPath

import numpy as np

from charact.data._spec import Labels, Pictures, PublishedFile, Split, StoredImagesSpec
from charact.errors import UserError

ARCHIVE = "cifar-10-binary.tar.gz"
BATCHES: dict[Split, tuple[str, ...]] = {
    "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    "test": ("test_batch.bin",),
}
PICTURE_SHAPE = (3, 32, 32)
RECORD_BYTES = 1 + 3 * 32 * 32
BATCH_PICTURES = 10_000


def parse_batch(content: bytes, path: Path) -> tuple[Pictures, Labels]:
    """Pictures (N, 3, 32, 32) and labels (N,) of a batch file's content; `path` is for messages.

    Raises:
        UserError: the content is not a whole number of records.
    """
    if not content or len(content) % RECORD_BYTES:
        raise UserError(f"{path} has {len(content):,} bytes, no whole number of {RECORD_BYTES:,}-byte records: "
                        "fetch it again")
    records = np.frombuffer(content, np.uint8).reshape(-1, RECORD_BYTES)
    return records[:, 1:].reshape(-1, *PICTURE_SHAPE), records[:, 0].astype(np.int64)


def unpack(archive: bytes, names: tuple[str, ...]) -> list[bytes]:
    """Contents of an archive's files of these names, in their order."""
    contents: dict[str, bytes] = {}
    # As a stream, the archive is decompressed once; by name it would be once for the index and once for the files.
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r|gz") as tar:
        for member in tar:
            name = PurePosixPath(member.name).name
            file = tar.extractfile(member) if name in names else None
            if file is not None:
                contents[name] = file.read()
    return [contents[name] for name in names]


def read_split(spec: StoredImagesSpec, directory: Path, split: Split) -> tuple[Pictures, Labels]:
    """Pictures (N, 3, 32, 32) and labels (N,) of a split.

    Raises:
        UserError: a file is missing, truncated or foreign.
    """
    names = BATCHES[split]
    path, content = spec.find(directory, ARCHIVE, names[0])
    if path.name == ARCHIVE:
        contents = unpack(content, names)
    else:
        contents = [content, *(spec.find(directory, ARCHIVE, name)[1] for name in names[1:])]
    images, labels = zip(*(parse_batch(batch, path) for batch in contents), strict=True)
    return np.concatenate(images), np.concatenate(labels)


DATASETS = [
    StoredImagesSpec(
        name="cifar10", description="objects and animals, coloured 32×32, 50,000 + 10,000 pictures",
        source="https://www.cs.toronto.edu/~kriz/", num_classes=10,
        num_pictures={split: len(names) * BATCH_PICTURES for split, names in BATCHES.items()},
        folders=("cifar-10-batches-bin", "cifar10", "cifar10/cifar-10-batches-bin"),
        files=(
            PublishedFile(ARCHIVE, 170_052_171, "c32a1d4ab5d03f1284b67883e8d87530"),
            *(PublishedFile(name, BATCH_PICTURES * RECORD_BYTES, None) for names in BATCHES.values() for name in names),
        ),
        read=read_split,
    ),
]
