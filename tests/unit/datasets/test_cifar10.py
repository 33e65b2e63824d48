"""CIFAR-10: binary records and pickles of Python 2 and 3, loose and in archives; damage, and code that must not run."""

import hashlib
import io
import pickle
import struct
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.damage import attempt, damaged

from charact.core.errors import UserError
from charact.datasets._common.spec import PublishedFile, StoredImagesSpec
from charact.datasets.cifar10 import (
    ARCHIVE,
    BATCHES,
    DATASETS,
    PICKLED_ARCHIVE,
    PICKLED_BATCHES,
    RECORD_BYTES,
    parse_batch,
    parse_pickled_batch,
    read_pickle,
)

SPEC = DATASETS[0]
MADE = Path("made")
ROW_BYTES = 3 * 32 * 32
PROTOCOLS = [2, 3, 4, 5]


def batch(num_pictures: int = 3, shift: int = 0) -> dict[str, Any]:
    """A pickled batch in the published layout: label (i + shift) modulo 10, every byte of row i is i modulo 256."""
    rows = np.repeat(np.arange(num_pictures, dtype=np.uint8)[:, None], ROW_BYTES, axis=1)
    return {"batch_label": "training batch 1 of 5", "labels": [(i + shift) % 10 for i in range(num_pictures)],
            "data": rows, "filenames": [f"leptodactylus_{i}.png" for i in range(num_pictures)]}


def records(num_pictures: int, shift: int = 0) -> bytes:
    """The same as binary records."""
    content = batch(num_pictures, shift)
    return np.column_stack([np.array(content["labels"], np.uint8), content["data"]]).tobytes()


def python2_bytes(content: dict[str, Any]) -> bytes:
    """The same as Python 2 wrote it with protocol 2, whose texts are strings of bytes."""
    def text(value: str) -> bytes:
        return b"U" + bytes([len(value)]) + value.encode("latin-1")

    def number(value: int) -> bytes:
        return b"K" + bytes([value]) if value < 256 else b"M" + struct.pack("<H", value)

    def items(values: list[bytes]) -> bytes:
        return b"]" + b"(" + b"".join(values) + b"e"

    rows = content["data"]
    array = (b"cnumpy.core.multiarray\n_reconstruct\nq\x01cnumpy\nndarray\nq\x02K\x00\x85U\x01b\x87Rq\x03(K\x01"
             + number(rows.shape[0]) + number(rows.shape[1]) + b"\x86cnumpy\ndtype\nq\x04U\x02u1K\x00K\x01\x87Rq\x05"
             b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T" + struct.pack("<i", rows.nbytes)
             + rows.tobytes() + b"tb")
    return (b"\x80\x02}q\x00(" + text("batch_label") + text(content["batch_label"])
            + text("labels") + items([number(label) for label in content["labels"]]) + text("data") + array
            + text("filenames") + items([text(name) for name in content["filenames"]]) + b"u.")


WRITERS: list[Callable[[dict[str, Any]], bytes]] = [
    python2_bytes, *((lambda content, protocol=protocol: pickle.dumps(content, protocol)) for protocol in PROTOCOLS)]


def archive_bytes(files: dict[str, bytes]) -> bytes:
    """A .tar.gz that lays its files out as the published ones do."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as tar:
        for name, content in {"readme.html": b"<html>", **files}.items():
            member = tarfile.TarInfo(f"cifar-10-batches/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def small() -> StoredImagesSpec:
    """As if every batch had been published with 3 pictures, and no checksum."""
    files = tuple(PublishedFile(file.name, None, None, splits=file.splits) for file in SPEC.files)
    return replace(SPEC, files=files, num_pictures={"train": 15, "test": 3})


# One batch

@given(st.integers(1, 3).flatmap(lambda num_pictures: damaged(records(num_pictures))))
def test_a_damaged_binary_batch_is_read_as_it_is_or_refused(content: bytes) -> None:
    read = attempt(parse_batch, content, MADE)
    if isinstance(read, UserError):
        assert not content or len(content) % RECORD_BYTES
        assert f"made has {len(content):,} bytes, not a multiple of 3,073-byte records" in str(read)
    else:
        assert read[0].shape == (len(read[1]), 3, 32, 32)
        assert b"".join(bytes([label]) + picture.tobytes() for picture, label in zip(*read, strict=True)) == content


def test_the_form_of_python_2_is_what_python_takes_it_for() -> None:
    understood = pickle.loads(python2_bytes(batch(300)), encoding="latin1")
    written = batch(300)
    assert np.array_equal(understood.pop("data"), written.pop("data"))
    assert understood == written


@pytest.mark.parametrize("write", WRITERS, ids=["python2", *map(str, PROTOCOLS)])
@pytest.mark.parametrize("num_pictures", [1, 300])
def test_a_pickled_batch_is_read_as_it_was_written(write: Callable[[dict[str, Any]], bytes], num_pictures: int) -> None:
    written = batch(num_pictures)
    images, labels = parse_pickled_batch(write(written), MADE)
    assert np.array_equal(images, written["data"].reshape(-1, 3, 32, 32))
    assert labels.tolist() == written["labels"]
    assert (images.dtype, labels.dtype) == (np.uint8, np.int64)


@pytest.mark.parametrize("protocol", PROTOCOLS[1:])
def test_keys_of_bytes_read_only_arrays_and_other_plain_values_are_read_too(protocol: int) -> None:
    written = {key.encode(): value for key, value in batch().items()}
    written[b"data"].flags.writeable = False
    images, labels = parse_pickled_batch(pickle.dumps(written, protocol), MADE)
    assert labels.tolist() == [0, 1, 2]
    assert images[2, 2, 31, 31] == 2
    plain = {"a": [1, -5, 70_000, 2**40, True, None, ("x", b"y"), {"z": []}], "twice": "", "again": ""}
    assert read_pickle(pickle.dumps(plain, protocol), MADE) == plain


class Evil:
    """Would make a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


class Stateful:
    """Would be made and given a state when it is unpickled."""

    def __init__(self) -> None:
        self.value = 1


@pytest.mark.parametrize("protocol", range(6))
def test_code_is_refused_and_does_not_run(tmp_path: Path, protocol: int) -> None:
    ran = tmp_path / "ran"
    for content in (Evil(ran), {"data": Evil(ran)}, {"labels": [Evil(ran)]}, batch() | {"data": Stateful()}):
        with pytest.raises(UserError, match=r"^made is rejected: its pickle names '"):
            read_pickle(pickle.dumps(content, protocol), MADE)
        assert not ran.exists()
    pickle.loads(pickle.dumps(Evil(ran), protocol))
    assert ran.exists()  # so it would have run


@pytest.mark.parametrize("program", [
    b"cos\nsystem\n(S'echo'\ntR.", b"(S'echo'\nios\nsystem\n.", b"(cos\nsystem\nS'echo'\no.",
    b"\x80\x04\x8c\x02os\x8c\x06system\x93.", b"\x80\x02cbuiltins\neval\n.",
    b"\x80\x04\x8c\x05numpy\x8c\x0ddtype.newtype\x93.", b"\x80\x02P1\n.", b"\x80\x02\x82\x01.", b"\x80\x05\x97.",
    b"", b"\x80\x02", b"}", b".", b"]", b"\x80\x02K\x01.", b"\x80\x02].", b"}e.", b"}K\x01a.", b"}K\x01K\x02s.", b"(u.",
    b"}(K\x01u.", b"h\x05.", b"e.", b"\x85.", b"<html>not found</html>", b"K\x01K\x02R.", b"}K\x01b.",
    b"U\x05ab.", b"T\xff\xff\xff\xff.", b"T\xff\xff\xff\x7f.", b"\x8e" + b"\xff" * 8, b"\x96" + b"\xff" * 7 + b"\x7f.",
    b"r\xff\xff\xff\xff.", b"}r\xff\xff\xff\xff0.", b"I" + b"9" * 10_000 + b"\n.", b"S'\\q'\n.", b"V\\ud8\n.",
    b"\x80\x02c_codecs\nencode\nK\x01\x85R.", b"}" + b"(" * 100_000, b"c\xff\n\n.",
])
def test_a_pickle_that_calls_something_else_or_is_no_dictionary_is_refused_in_one_line(program: bytes) -> None:
    with pytest.raises(UserError, match=r"^made is (rejected: its pickle names '|a damaged pickle).*: fetch it again$"
                       ) as refusal:
        read_pickle(program, MADE)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 200


def with_array(**fields: Any) -> bytes:
    return pickle.dumps(batch() | fields, 4)


@pytest.mark.parametrize(("content", "reason"), [
    (with_array(data=np.zeros((3, ROW_BYTES), np.int8)), "different number of rows"),
    (with_array(data=np.zeros((3, ROW_BYTES // 8))), "different number of rows"),
    (with_array(data=np.zeros((2, ROW_BYTES), np.uint8)), "has 3 labels and a different number of rows"),
    (with_array(data=np.zeros((3, 3, 32, 32), np.uint8)), "different number of rows"),
    (with_array(data=bytes(3 * ROW_BYTES)), "has no array 'data' and list 'labels'"),
    (with_array(labels=(0, 1, 2)), "has no array 'data' and list 'labels'"),
    (with_array(labels=[0, 1, 10]), "labels that are not from 0 to 9"),
    (with_array(labels=[0, 1, -1]), "labels that are not from 0 to 9"),
    (with_array(labels=[0, 1, True]), "labels that are not from 0 to 9"),
    (with_array(labels=[0, 1, "2"]), "labels that are not from 0 to 9"),
    (with_array(labels=[], data=np.zeros((0, ROW_BYTES), np.uint8)), "has 0 labels"),
    (pickle.dumps({}, 4), "has no array"),
])
def test_a_batch_of_another_form_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(UserError, match=f"^made .*{reason}.*: fetch it again$"):
        parse_pickled_batch(content, MADE)


@st.composite
def damaged_pickles(draw: st.DrawFn) -> bytes:
    """A small batch with some bits flipped, mostly outside of its pictures, its end cut off, or something after it."""
    content = bytearray(draw(st.sampled_from(WRITERS))(batch(2)))
    edges = st.integers(0, 400) | st.integers(len(content) - 250, len(content) - 1)
    for place in draw(st.lists(edges | st.integers(0, len(content) - 1), max_size=3)):
        content[place] ^= 1 << draw(st.integers(0, 7))
    cut = draw(st.none() | st.integers(0, len(content)))
    return bytes(content[:cut]) + draw(st.binary(max_size=9))


@given(damaged_pickles() | st.binary(max_size=64))
def test_a_damaged_pickle_is_refused_in_one_line_or_read_whole(content: bytes) -> None:
    read = attempt(parse_pickled_batch, content, MADE)
    if isinstance(read, UserError):
        assert "\n" not in str(read)
        assert len(str(read)) < 250
        return
    images, labels = read
    assert images.shape == (len(labels), 3, 32, 32)
    assert all(0 <= label < 10 for label in labels)
    assert images.tobytes() in content or images.max() > 127  # Python 3's protocol 2 writes larger values in two bytes


# Splits

@pytest.mark.parametrize(("archive", "names", "write", "folders"), [
    (ARCHIVE, BATCHES, lambda content: records(len(content["labels"]), content["labels"][0]),
     ["", "cifar10", "cifar-10-batches-bin", "cifar10/cifar-10-batches-bin"]),
    (PICKLED_ARCHIVE, PICKLED_BATCHES, python2_bytes,
     ["", "cifar10", "cifar-10-batches-py", "cifar10/cifar-10-batches-py"]),
], ids=["binary", "pickled"])
def test_batches_are_read_in_order_loose_and_from_an_archive(
        tmp_path: Path, small: StoredImagesSpec, archive: str, names: dict[str, tuple[str, ...]],
        write: Callable[[dict[str, Any]], bytes], folders: list[str]) -> None:
    files = {name: write(batch(3, shift)) for split in names for shift, name in enumerate(names[split])}
    places = [tmp_path / f"loose{number}" / folder for number, folder in enumerate(folders)]
    for place in places:
        place.mkdir(parents=True)
        for name, content in files.items():
            (place / name).write_bytes(content)
    (tmp_path / archive).write_bytes(archive_bytes(dict(reversed(files.items()))))
    for directory in (tmp_path, *(tmp_path / f"loose{number}" for number in range(len(folders)))):
        images, labels = small.load(directory, "train")
        assert labels.tolist() == [0, 1, 2, 1, 2, 3, 2, 3, 4, 3, 4, 5, 4, 5, 6]
        assert images[:, 2, 31, 31].tolist() == [0, 1, 2] * 5
        assert images.flags.writeable
        assert small.load(directory, "test")[1].tolist() == [0, 1, 2]
    third = names["train"][2]
    (places[0] / third).unlink()
    with pytest.raises(UserError, match=rf"needs {archive} or {third}, which .* lack: .*fetch cifar10` downloads"):
        small.load(tmp_path / "loose0", "train")
    (tmp_path / archive).write_bytes(archive_bytes({name: files[name] for name in files if name != third}))
    with pytest.raises(UserError, match=rf"{archive} has no {third}: fetch it again"):
        small.load(tmp_path, "train")
    (tmp_path / archive).write_bytes(archive_bytes(files | {third: b"cut"}))
    with pytest.raises(UserError, match=rf"{archive}/{third} "):
        small.load(tmp_path, "train")


def test_the_binary_form_is_preferred(tmp_path: Path, small: StoredImagesSpec) -> None:
    (tmp_path / "test_batch").write_bytes(python2_bytes(batch()))
    (tmp_path / "test_batch.bin").write_bytes((b"\x07" + bytes(ROW_BYTES)) * 3)
    assert small.load(tmp_path, "test")[1].tolist() == [7, 7, 7]


def test_files_are_held_against_what_was_published(tmp_path: Path) -> None:
    for name, content, reason in (
            ("test_batch", python2_bytes(batch()), r"truncated or foreign \(MD5 \w+, published 40351d587109b95175f43a"),
            ("test_batch.bin", records(9_999), r"truncated \(30,726,927 bytes, published 30,730,000\)"),
            ("test_batch.bin", bytes([200]) * 30_730_000, "labels from 200 to 200, 10 classes were published"),
            (ARCHIVE, b"foreign", r"truncated \(7 bytes, published 170,052,171\)")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=reason):
            SPEC.load(tmp_path, "test")
    broken = bytearray(archive_bytes({"test_batch.bin": records(1)}))
    published = PublishedFile(ARCHIVE, len(broken), hashlib.sha256(broken).hexdigest())
    broken[len(broken) // 2] ^= 1
    (tmp_path / ARCHIVE).write_bytes(broken)
    with pytest.raises(UserError, match=r"truncated or foreign \(SHA-256 .*: fetch it again from https://www.cs.toronto"):
        replace(SPEC, files=(published, *SPEC.files[1:])).load(tmp_path, "test")
