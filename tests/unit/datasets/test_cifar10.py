"""CIFAR-10's binary form: made files, unpacked and in an archive, and broken ones."""

import hashlib
import io
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.damage import attempt, damaged

from charact.core.errors import UserError
from charact.datasets._common.spec import PublishedFile, StoredDatasetSpec
from charact.datasets.cifar10 import ARCHIVE, BATCHES, DATASETS, RECORD_BYTES, parse_batch, unpack

SPEC = DATASETS[0]


def batch_bytes(num_pictures: int, shift: int = 0) -> bytes:
    """Records whose labels are (i + shift) modulo 10 and whose planes are filled with 10, 20 and 30."""
    records = np.empty((num_pictures, RECORD_BYTES), np.uint8)
    records[:, 0] = (np.arange(num_pictures) + shift) % 10
    records[:, 1:] = np.repeat([10, 20, 30], 1024)
    return records.tobytes()


def archive_bytes(files: dict[str, bytes]) -> bytes:
    """A .tar.gz that lays its files out as the published one does."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as tar:
        for name, content in {"readme.html": b"<html>", **files}.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def with_archive(archive: bytes) -> StoredDatasetSpec:
    """The dataset, had this archive been published."""
    published = PublishedFile(ARCHIVE, len(archive), hashlib.md5(archive).hexdigest())
    return replace(SPEC, files=(published, *SPEC.files[1:]))


@pytest.mark.parametrize("folder", ["", "cifar-10-batches-bin", "cifar10", "cifar10/cifar-10-batches-bin"])
def test_unpacked_files_are_read(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    (tmp_path / folder / "test_batch.bin").write_bytes(batch_bytes(10_000))
    images, labels = SPEC.load(tmp_path, "test")
    assert images.shape == (10_000, 3, 32, 32)
    assert images[9_999, :, 31, 31].tolist() == [10, 20, 30]
    assert np.bincount(labels).tolist() == [1_000] * 10


@pytest.mark.slow
def test_the_archives_batches_are_read_in_order(tmp_path: Path) -> None:
    files = {name: batch_bytes(10_000, shift) for shift, name in enumerate(BATCHES["train"])}
    archive = archive_bytes(dict(reversed(files.items())))
    (tmp_path / ARCHIVE).write_bytes(archive)
    images, labels = with_archive(archive).load(tmp_path, "train")
    assert images.shape == (50_000, 3, 32, 32)
    assert images.flags.writeable
    assert labels[::10_000].tolist() == [0, 1, 2, 3, 4]


def test_unpacking_leaves_other_files_out() -> None:
    archive = archive_bytes({"test_batch.bin": b"test", "data_batch_1.bin": b"one"})
    assert unpack(archive, ("data_batch_1.bin", "test_batch.bin"), Path("made")) == [b"one", b"test"]


def test_one_changed_byte_of_the_archive_is_refused(tmp_path: Path) -> None:
    archive = archive_bytes({"test_batch.bin": batch_bytes(1)})
    broken = bytearray(archive)
    broken[len(broken) // 2] ^= 1
    (tmp_path / ARCHIVE).write_bytes(broken)
    with pytest.raises(UserError, match=r"truncated or foreign \(MD5 .*: fetch it again from https://www.cs.toronto"):
        with_archive(archive).load(tmp_path, "test")


@given(st.binary(max_size=64))
def test_a_foreign_archive_is_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.getbasetemp()
    (folder / ARCHIVE).write_bytes(content)
    with pytest.raises(UserError, match=rf"truncated \({len(content)} bytes, published 170,052,171\)"):
        SPEC.load(folder, "test")


def test_a_missing_batch_is_named(tmp_path: Path) -> None:
    for name in BATCHES["train"][:2]:
        (tmp_path / name).write_bytes(batch_bytes(10_000))
    with pytest.raises(UserError, match=rf"needs {ARCHIVE} or data_batch_3.bin.*fetch cifar10` downloads https://.*/"):
        SPEC.load(tmp_path, "train")


@given(st.integers(1, 3).flatmap(lambda num_pictures: damaged(batch_bytes(num_pictures))))
def test_a_damaged_batch_is_read_as_it_is_or_refused(content: bytes) -> None:
    read = attempt(parse_batch, content, Path("made"))
    if isinstance(read, UserError):
        assert not content or len(content) % RECORD_BYTES
    else:
        assert read[0].shape == (len(read[1]), 3, 32, 32)
        records = [bytes([label]) + picture.tobytes() for picture, label in zip(*read, strict=True)]
        assert b"".join(records) == content


@pytest.mark.parametrize(("content", "reason"), [
    (batch_bytes(9_999), r"test_batch.bin is truncated \(30,726,927 bytes, published 30,730,000\)"),
    (bytes([200]) * 30_730_000, "labels from 200 to 200, 10 classes were published"),
], ids=["a record less", "other labels"])
def test_a_batch_of_another_content_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "test_batch.bin").write_bytes(content)
    with pytest.raises(UserError, match=reason):
        SPEC.load(tmp_path, "test")


@pytest.mark.parametrize("num_bytes", [0, 1, RECORD_BYTES - 1, RECORD_BYTES + 1, 2 * RECORD_BYTES - 1])
def test_a_part_of_a_record_is_refused(num_bytes: int) -> None:
    with pytest.raises(UserError, match=rf"^made has {num_bytes:,} bytes, not a multiple of 3,073-byte records"):
        parse_batch(bytes(num_bytes), Path("made"))
