"""IDX files: the real MNIST test split, made files, and broken ones."""

import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.damage import attempt, damaged

from charact.core.errors import UserError
from charact.datasets._common.registry import find_dataset
from charact.datasets._common.spec import StoredDatasetSpec
from charact.datasets.idx import parse_idx

REAL_MNIST = Path(__file__).resolve().parents[4] / "shared" / "data" / "mnist"
needs_mnist = pytest.mark.skipif(not REAL_MNIST.is_dir(), reason="needs the MNIST test split in ../shared/data/mnist")
FAMILY = ["mnist", "fashion_mnist", "kmnist"]
IMAGES, LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


def stored(name: str) -> StoredDatasetSpec:
    spec = find_dataset(name)
    assert isinstance(spec, StoredDatasetSpec)
    return spec


def idx_bytes(array: np.ndarray) -> bytes:
    """An IDX file of unsigned bytes, written after the format's description."""
    header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_test_split(folder: Path) -> None:
    """A raw test split: picture i is filled with i modulo 256, its label is i modulo 10."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = np.arange(10_000)
    pictures = np.broadcast_to((numbers % 256)[:, None, None], (10_000, 28, 28))
    (folder / IMAGES).write_bytes(idx_bytes(pictures))
    (folder / LABELS).write_bytes(idx_bytes(numbers % 10))


@needs_mnist
def test_the_real_test_split_has_its_published_counts() -> None:
    images, labels = stored("mnist").load(REAL_MNIST, "test")
    assert images.shape == (10_000, 28, 28)
    # How often each digit occurs, and the first ten labels, as published.
    assert np.bincount(labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert images.mean() / 255 == pytest.approx(0.1325, abs=1e-4)


@needs_mnist
@pytest.mark.parametrize("name", ["fashion_mnist", "kmnist"])
def test_another_familys_files_are_told_by_their_size(name: str) -> None:
    with pytest.raises(UserError, match=r"t10k-images-idx3-ubyte.gz is truncated \(1,648,877 bytes, published"):
        stored(name).load(REAL_MNIST, "test")


@pytest.mark.parametrize(("name", "folder"), [
    ("mnist", ""), ("mnist", "raw"), ("mnist", "mnist"), ("mnist", "mnist/raw"),
    ("mnist", "MNIST/raw"), ("fashion_mnist", "FashionMNIST/raw"), ("kmnist", "KMNIST/raw"),
])
def test_raw_files_are_read_from_the_usual_folders(tmp_path: Path, name: str, folder: str) -> None:
    write_test_split(tmp_path / folder)
    images, labels = stored(name).load(tmp_path, "test")
    assert images[[0, 255, 256, 9_999], 27, 27].tolist() == [0, 255, 0, 9_999 % 256]
    assert labels[[0, 9, 10]].tolist() == [0, 9, 0]


def test_the_archive_is_preferred_to_the_raw_file(tmp_path: Path) -> None:
    write_test_split(tmp_path)
    (tmp_path / f"{IMAGES}.gz").write_bytes(b"not the archive")
    with pytest.raises(UserError, match=f"{IMAGES}.gz is truncated"):
        stored("mnist").load(tmp_path, "test")


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    looping = tmp_path / "looping"
    looping.symlink_to(looping)
    file = tmp_path / "file"
    file.touch()
    for directory in (tmp_path / "absent", looping, file):
        with pytest.raises(UserError, match=f"{directory.name} .*--data-dir, or download it with charact data fetch"):
            stored("mnist").load(directory, "test")


@pytest.mark.parametrize("array", [np.arange(6).reshape(1, 2, 3), np.full((3, 28, 28), 255), np.array([7])])
def test_parsing_gives_back_what_was_written(array: np.ndarray) -> None:
    parsed = parse_idx(idx_bytes(array), array.ndim, Path("made"))
    assert parsed.dtype == np.uint8
    assert np.array_equal(parsed, array)


@pytest.mark.parametrize("content", [
    b"", b"\0\0\x08", b"<html>not found</html>", idx_bytes(np.zeros(5)), idx_bytes(np.zeros((0, 2, 2))),
    idx_bytes(np.zeros((2, 2, 2)))[:-1], idx_bytes(np.zeros((2, 2, 2))) + b"\0",
    b"\0\0\x0d\x03" + idx_bytes(np.zeros((2, 2, 2)))[4:],
    b"\0\0\x08\x03" + b"\xff" * 12, b"\0\0\x08\x03" + b"\0" * 4 + b"\xff" * 8,
])
def test_parsing_refuses_other_content(content: bytes) -> None:
    with pytest.raises(UserError, match=r"^made .*: fetch it again$"):
        parse_idx(content, 3, Path("made"))


@given(st.binary(max_size=64) | st.tuples(*[st.integers(1, 3)] * 3).flatmap(
    lambda shape: damaged(idx_bytes(np.full(shape, 7)))))
def test_parsing_takes_a_file_whole_or_refuses_it(content: bytes) -> None:
    parsed = attempt(parse_idx, content, 3, Path("made"))
    assert isinstance(parsed, UserError) or idx_bytes(parsed) == content


@given(st.sampled_from(FAMILY), st.sampled_from(["", ".gz"]), st.binary(max_size=64))
def test_small_files_in_place_of_the_published_are_refused(name: str, suffix: str, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / f"{IMAGES}{suffix}").write_bytes(content)
        with pytest.raises(UserError):
            stored(name).load(Path(folder), "test")


@needs_mnist
@pytest.mark.parametrize(("change", "difference"), [
    (lambda content: b"", "truncated"), (lambda content: content[:-1], "truncated"),
    (lambda content: content + b"\0", "foreign"),
    (lambda content: content[:10**6] + bytes([content[10**6] ^ 1]) + content[10**6 + 1:], "truncated or foreign"),
])
def test_a_changed_archive_is_refused(tmp_path: Path, change: Callable[[bytes], bytes], difference: str) -> None:
    (tmp_path / f"{IMAGES}.gz").write_bytes(change((REAL_MNIST / f"{IMAGES}.gz").read_bytes()))
    with pytest.raises(UserError, match=rf"{IMAGES}.gz is {difference} \(.*published .*fetch it again from http"):
        stored("mnist").load(tmp_path, "test")


@pytest.mark.parametrize(("name", "array", "reason"), [
    (LABELS, np.full(10_000, 77), "labels from 77 to 77, 10 classes were published"),
    (LABELS, np.zeros(9_999), r"truncated \(10,007 bytes, published 10,008\)"),
    # As many bytes as published, but a split of 5,000 wider pictures.
    (IMAGES, np.zeros((5_000, 28, 56)), "5,000 images and 10,000 labels for test, 10,000 were published"),
])
def test_a_raw_file_of_another_content_is_refused(tmp_path: Path, name: str, array: np.ndarray, reason: str) -> None:
    write_test_split(tmp_path)
    (tmp_path / name).write_bytes(idx_bytes(array))
    with pytest.raises(UserError, match=reason):
        stored("mnist").load(tmp_path, "test")
