"""CIFAR-10's pickles: their true layout by Python 2 and 3, code that must not run, damage."""

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
from hypothesis import given, settings
from hypothesis import strategies as st

from charact.core.errors import UserError
from charact.datasets._common.cifar_pickle import read_pickle
from charact.datasets._common.spec import PublishedFile, StoredImagesSpec
from charact.datasets.cifar10 import BATCHES, DATASETS, PICKLED_ARCHIVE, PICKLED_BATCHES, parse_pickled_batch

SPEC = DATASETS[0]
MADE = Path("made")
ROW_BYTES = 3 * 32 * 32
PROTOCOLS = [2, 3, 4, 5]


def batch(num_pictures: int = 3, shift: int = 0) -> dict[str, Any]:
    """A batch in the published layout: label (i + shift) modulo 10, every byte of row i is i modulo 256."""
    rows = np.repeat(np.arange(num_pictures, dtype=np.uint8)[:, None], ROW_BYTES, axis=1)
    return {"batch_label": "training batch 1 of 5", "labels": [(i + shift) % 10 for i in range(num_pictures)],
            "data": rows, "filenames": [f"leptodactylus_{i}.png" for i in range(num_pictures)]}


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


def writers() -> list[Callable[[dict[str, Any]], bytes]]:
    return [python2_bytes, *((lambda content, protocol=protocol: pickle.dumps(content, protocol))
                             for protocol in PROTOCOLS)]


def attempt(content: bytes) -> Any:
    """What the reader of a batch returns, or the error with which it refuses."""
    try:
        return parse_pickled_batch(content, MADE)
    except UserError as error:
        return error


def test_the_form_of_python_2_is_what_python_takes_it_for() -> None:
    understood = pickle.loads(python2_bytes(batch(300)), encoding="latin1")
    written = batch(300)
    assert np.array_equal(understood.pop("data"), written.pop("data"))
    assert understood == written


@pytest.mark.parametrize("write", writers(), ids=["python2", *map(str, PROTOCOLS)])
@pytest.mark.parametrize("num_pictures", [1, 300, 2_500])
def test_a_batch_is_read_as_it_was_written(write: Callable[[dict[str, Any]], bytes], num_pictures: int) -> None:
    written = batch(num_pictures)
    images, labels = parse_pickled_batch(write(written), MADE)
    assert np.array_equal(images, written["data"].reshape(-1, 3, 32, 32))
    assert labels.tolist() == written["labels"]
    assert (images.dtype, labels.dtype) == (np.uint8, np.int64)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_keys_of_bytes_and_read_only_arrays_are_read_too(protocol: int) -> None:
    written = {key.encode(): value for key, value in batch().items()}
    written[b"data"].flags.writeable = False
    images, labels = parse_pickled_batch(pickle.dumps(written, protocol), MADE)
    assert labels.tolist() == [0, 1, 2]
    assert images[2, 2, 31, 31] == 2


def test_other_plain_values_come_back() -> None:
    written = {"a": [1, -5, 70_000, 2**40, True, None, ("x", b"y"), {"z": []}], "twice": "", "again": ""}
    for protocol in PROTOCOLS[1:]:
        assert read_pickle(pickle.dumps(written, protocol), MADE) == written


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
        written = pickle.dumps(content, protocol)
        with pytest.raises(UserError, match=r"^made is rejected: its pickle names '"):
            read_pickle(written, MADE)
        assert not ran.exists()
    pickle.loads(pickle.dumps(Evil(ran), protocol))
    assert ran.exists()  # so it would have run


@pytest.mark.parametrize("program", [
    b"cos\nsystem\n(S'echo'\ntR.", b"(S'echo'\nios\nsystem\n.", b"(cos\nsystem\nS'echo'\no.",
    b"\x80\x04\x8c\x02os\x8c\x06system\x93.", b"\x80\x02cbuiltins\neval\n.",
    b"\x80\x04\x8c\x05numpy\x8c\x0ddtype.newtype\x93.", b"\x80\x02P1\n.", b"\x80\x02\x82\x01.", b"\x80\x05\x97.",
])
def test_every_way_to_call_something_else_is_refused(program: bytes) -> None:
    with pytest.raises(UserError, match=r"^made is (rejected: its pickle names '|a damaged pickle)"):
        read_pickle(program, MADE)


@pytest.mark.parametrize("program", [
    b"", b"\x80\x02", b"}", b".", b"]", b"\x80\x02K\x01.", b"\x80\x02].", b"}e.", b"}K\x01a.", b"}K\x01K\x02s.", b"(u.",
    b"}(K\x01u.", b"h\x05.", b"e.", b"\x85.", b"<html>not found</html>", b"K\x01K\x02R.", b"}K\x01b.",
    b"U\x05ab.", b"T\xff\xff\xff\xff.", b"T\xff\xff\xff\x7f.", b"\x8e" + b"\xff" * 8, b"\x96" + b"\xff" * 7 + b"\x7f.",
    b"r\xff\xff\xff\xff.", b"}r\xff\xff\xff\xff0.", b"I" + b"9" * 10_000 + b"\n.", b"S'\\q'\n.", b"V\\ud8\n.",
    b"\x80\x02c_codecs\nencode\nK\x01\x85R.", b"}" + b"(" * 100_000, b"c\xff\n\n.",
])
def test_what_is_no_dictionary_is_refused_in_one_line(program: bytes) -> None:
    with pytest.raises(UserError, match=r"^made is .*: fetch it again$") as refusal:
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
def damaged(draw: st.DrawFn) -> bytes:
    """A small batch with some bits flipped, mostly outside of its pictures, its end cut off, or something after it."""
    content = bytearray(draw(st.sampled_from(writers()))(batch(2)))
    edges = st.integers(0, 400) | st.integers(len(content) - 250, len(content) - 1)
    for place in draw(st.lists(edges | st.integers(0, len(content) - 1), max_size=3)):
        content[place] ^= 1 << draw(st.integers(0, 7))
    cut = draw(st.none() | st.integers(0, len(content)))
    return bytes(content[:cut]) + draw(st.binary(max_size=9))


@settings(deadline=None)
@given(damaged() | st.binary(max_size=64))
def test_a_damaged_batch_is_refused_in_one_line_or_read_whole(content: bytes) -> None:
    read = attempt(content)
    if isinstance(read, UserError):
        assert "\n" not in str(read)
        assert len(str(read)) < 250
        return
    images, labels = read
    assert images.shape == (len(labels), 3, 32, 32)
    assert all(0 <= label < 10 for label in labels)
    assert images.tobytes() in content or images.max() > 127  # Python 3's protocol 2 writes larger values in two bytes


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> StoredImagesSpec:
    """As if every batch had been published with 3 pictures, and no checksum."""
    files = tuple(PublishedFile(file.name, None, None, splits=file.splits) for file in SPEC.files)
    return replace(SPEC, files=files, num_pictures={"train": 15, "test": 3})


def write_batches(folder: Path) -> None:
    folder.mkdir(parents=True)
    for split in PICKLED_BATCHES:
        for shift, name in enumerate(PICKLED_BATCHES[split]):
            (folder / name).write_bytes(python2_bytes(batch(3, shift)))


@pytest.mark.parametrize("folder", ["cifar-10-batches-py", "cifar10", "cifar10/cifar-10-batches-py"])
def test_loose_batches_are_read_in_order(tmp_path: Path, small: StoredImagesSpec, folder: str) -> None:
    write_batches(tmp_path / folder)
    images, labels = small.load(tmp_path, "train")
    assert labels.tolist() == [0, 1, 2, 1, 2, 3, 2, 3, 4, 3, 4, 5, 4, 5, 6]
    assert images[:, 0, 0, 0].tolist() == [0, 1, 2] * 5
    assert images.flags.writeable
    assert small.load(tmp_path, "test")[1].tolist() == [0, 1, 2]


def test_the_archive_is_read_and_named_with_its_broken_batch(tmp_path: Path, small: StoredImagesSpec) -> None:
    for broken, read in ((False, True), (True, False)):
        with tarfile.open(tmp_path / PICKLED_ARCHIVE, "w:gz") as tar:
            for split in PICKLED_BATCHES:
                for shift, name in enumerate(PICKLED_BATCHES[split]):
                    content = b"cut" if broken and name == "data_batch_4" else python2_bytes(batch(3, shift))
                    member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
        if read:
            assert small.load(tmp_path, "train")[1].tolist()[-3:] == [4, 5, 6]
        else:
            with pytest.raises(UserError, match=rf"{PICKLED_ARCHIVE}/data_batch_4 is "):
                small.load(tmp_path, "train")


def test_the_binary_form_is_preferred(tmp_path: Path, small: StoredImagesSpec) -> None:
    write_batches(tmp_path / "cifar-10-batches-py")
    assert small.load(tmp_path, "test")[1].tolist() == [0, 1, 2]
    (tmp_path / BATCHES["test"][0]).write_bytes((b"\x07" + bytes(ROW_BYTES)) * 3)
    assert small.load(tmp_path, "test")[1].tolist() == [7, 7, 7]


def test_a_loose_batch_is_held_against_its_published_checksum(tmp_path: Path) -> None:
    content = python2_bytes(batch(3))
    (tmp_path / "test_batch").write_bytes(content)
    md5 = hashlib.md5(content).hexdigest()
    with pytest.raises(UserError, match=rf"test_batch is truncated or foreign \(MD5 {md5}, "
                                        "published 40351d587109b95175f43aff81a1287e"):
        SPEC.load(tmp_path, "test")
