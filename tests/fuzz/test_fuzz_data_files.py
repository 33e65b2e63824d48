"""Files of data sets that are damaged or hostile: read as every command reads them, as if no checksum were known."""

import contextlib
import gzip
import io
import pickle
import random
import struct
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.fuzzing import damaged_bytes, fuzz

from charact.core.errors import UserError
from charact.datasets import cbtest, cifar10, idx, tatoeba, wikitext
from charact.datasets._common.request import DataRequest
from charact.datasets._common.spec import PublishedFile, Split, StoredDatasetSpec
from charact.datasets._fetch import file_state, split_samples
from charact.datasets._samples import cloze, text_streams, translation_pairs

Rng = random.Random
NUM_PICTURES = 3
SPECS: dict[str, StoredDatasetSpec] = {}


@pytest.fixture(autouse=True)
def as_small_as_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data sets as if they had been published with a few samples and without sizes and checksums."""
    for module in (idx, cifar10, wikitext, tatoeba, cbtest):
        for spec in module.DATASETS:
            files = tuple(PublishedFile(file.name, None, None, splits=file.splits, most_bytes=file.most_bytes)
                          for file in spec.files)
            small = replace(spec, files=files)
            if module is idx:
                small = replace(small, num_pictures={"train": NUM_PICTURES, "test": NUM_PICTURES})  # type: ignore[call-arg]
            if module is cifar10:
                counts = {"train": 5 * NUM_PICTURES, "test": NUM_PICTURES}
                small = replace(small, num_pictures=counts)  # type: ignore[call-arg]
            SPECS[spec.name] = small
    for split, lines, tokens in (("train", 3, 12), ("valid", 2, 7), ("test", 2, 7)):
        monkeypatch.setitem(wikitext.NUM_LINES, split, lines)
        monkeypatch.setitem(wikitext.NUM_TOKENS, split, tokens)
    for kind in ("NE", "CN"):
        monkeypatch.setitem(cbtest.NUM_SAMPLES, kind, {"train": 2, "valid": 1, "test": 1})


def read(directory: Path) -> None:
    """Read the data set that a directory is named by, each split, and check its files."""
    spec = SPECS[directory.name]
    refusals: list[UserError] = []
    for file in spec.files:
        assert "\n" not in file_state(spec, file, directory)
    for split in spec.splits:
        try:
            split_samples(spec, directory, split)
            use(spec, spec.load(directory, split), split)
        except UserError as error:
            refusals.append(error)
    if refusals:
        raise refusals[0]


def use(spec: StoredDatasetSpec, content: Any, split: Split) -> None:
    """Take what a workload takes of a split."""
    request = DataRequest(spec.name, None, split, batch_size=1)
    if spec.kind == "image":
        images, labels = content
        assert len(images) == len(labels)
        assert images.dtype == np.uint8
        assert 0 <= labels.min() <= labels.max() < 10
    elif spec.kind == "language_model":
        tokens, vocabulary = content
        text_streams.TokenStreams(tokens, len(vocabulary), 2, request)[0]
    elif spec.kind == "translation":
        pairs = tatoeba.encode_pairs(content, split, 10)
        translation_pairs.SentencePairs(pairs)[0]
    else:
        questions, vocabulary = content
        samples = cloze.ClozeQuestions(questions, len(vocabulary), 30, answerable_only=False)
        for index in range(len(samples)):
            assert samples[index].document.shape == (30,)


# What each kind of file holds when it is whole.

def idx_bytes(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def batch(rng: Rng) -> dict[str, Any]:
    return {"batch_label": "b", "labels": [rng.randrange(10) for _ in range(NUM_PICTURES)],
            "data": np.frombuffer(rng.randbytes(NUM_PICTURES * 3072), np.uint8).reshape(NUM_PICTURES, 3072),
            "filenames": ["a.png"] * NUM_PICTURES}


def sample(rng: Rng) -> bytes:
    words = ["fox", "hen", "cow", "dog", "cat", "pig", "ram", "owl", "bee", "ant"]
    lines = [f"{number} One day the {rng.choice(words)} met a hen ." for number in range(1, 21)]
    return "\n".join([*lines, f"21 The XXXXX ran .\t{rng.choice(words)}\t\t{'|'.join(words)}", "", ""]).encode()


def pairs(rng: Rng) -> bytes:
    return "".join(f"I am {'x' * rng.randrange(1, 9)}.\tJe suis é{'y' * number}.\n" for number in range(30)).encode()


def hostile_text(rng: Rng) -> bytes:
    """Long lines, many lines, many words, letters that Unicode makes much of."""
    size = rng.choice([10, 1_000, 1_000, 100_000, 100_000, 100_000, 20_000_000])
    piece = rng.choice([b"\n", b"\t\n", b" ", b"a", b"a ", b".", "\u0316\u0301".encode(), "\ufdfa".encode(), b"\r",
                        b"1 a\n", "\u2028".encode(), b"\x00", b"I am a\tb\n", "İ".encode(), b"\xff",
                        b"21 XXXXX\ta\t\ta\n"])
    content = piece * (size // len(piece))
    if rng.random() < 0.3:
        content = b"".join(b"w%d%s" % (number, rng.choice([b" ", b"\n", b"\t"])) for number in range(size // 8))
    return rng.choice([b"", b"1 ", b"I am a\tb\n"]) + content


def text(rng: Rng, whole: Callable[[Rng], bytes]) -> bytes:
    kind = rng.random()
    if kind < 0.1:
        return whole(rng)
    if kind < 0.8:
        content = damaged_bytes(rng, whole(rng))
        return content if rng.random() < 0.7 else damaged_bytes(rng, content)
    return hostile_text(rng)


def tar(rng: Rng, members: dict[str, bytes]) -> bytes:
    """A tar archive whose members are links, devices, sparse or of absurd sizes now and then."""
    buffer = io.BytesIO()
    form = rng.choice([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    hostile = rng.random() < 0.5
    with tarfile.open(fileobj=buffer, mode="w", format=form, encoding="utf-8") as file:
        for name, content in members.items():
            for _ in range(2 if hostile and rng.random() < 0.1 else 1):
                member = tarfile.TarInfo(rng.choice(["", "a/", "../", "/"]) + name)
                member.size = len(content)
                if hostile and rng.random() < 0.3:
                    member.type = rng.choice([tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE,
                                              tarfile.DIRTYPE, tarfile.GNUTYPE_SPARSE, tarfile.CONTTYPE, b"x", b"L"])
                    member.linkname = rng.choice(["/etc/passwd", name, "a" * 90])
                file.addfile(member, io.BytesIO(content))
        for number in range(rng.choice([0, 0, 1_000]) if hostile else 0):
            file.addfile(tarfile.TarInfo(f"more/{number}"))
    content = bytearray(buffer.getvalue())
    if hostile and rng.random() < 0.5:
        at = 512 * rng.randrange(max(1, min(len(content) // 512, 40)))
        content[at + 124: at + 136] = rng.choice([b"77777777777\0", b"\x80" + b"\xff" * 11, b"\xff" * 12, b"0" * 12,
                                                  b"-0000000001\0", rng.randbytes(12), bytes(12), b"00000001000\0"])
        checksum = sum(content[at: at + 148]) + 256 + sum(content[at + 156: at + 512])
        content[at + 148: at + 156] = f"{checksum:06o}\0 ".encode()
    return bytes(content)


def packed(rng: Rng, content: bytes) -> bytes:
    """A gzip stream, which unpacks to far more than it should now and then."""
    kind = rng.random()
    if kind < 0.02:
        return gzip.compress(bytes(2**28), 1) * rng.choice([1, 12])
    stream = gzip.compress(content, 1)
    if kind < 0.1:
        return stream + rng.choice([stream, b"\0" * 100, rng.randbytes(50), gzip.compress(bytes(2**20))])
    if kind < 0.3:
        return damaged_bytes(rng, stream)
    if kind < 0.4:
        return gzip.compress(damaged_bytes(rng, content), 1)
    return stream


def zipped(rng: Rng, name: str, content: bytes) -> bytes:
    """A zip archive, in other compressions, with the name twice, encrypted, overlapping or lying now and then."""
    buffer = io.BytesIO()
    method = rng.choice([zipfile.ZIP_DEFLATED] * 6 + [zipfile.ZIP_STORED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    kind = rng.random()
    if kind < 0.02:
        content = bytes(2**28)
    with zipfile.ZipFile(buffer, "w", method, compresslevel=1) as file:
        for number in range(rng.choice([0, 1, 3_000])):
            file.writestr(f"data/names/{number}", b"")
        with contextlib.suppress(UserWarning):
            for _ in range(2 if rng.random() < 0.05 else 1):
                file.writestr(rng.choice(["data/", "", "../"]) + name, content)
    archive = bytearray(buffer.getvalue())
    if kind > 0.7:
        at = archive.rindex(b"PK\x01\x02")
        place = rng.choice([8, 10, 16, 20, 24, 28, 30, 32, 42])
        archive[at + place: at + place + 4] = rng.choice([b"\xff" * 4, bytes(4), b"\x01\0\0\0", rng.randbytes(4)])
    elif kind > 0.5:
        return damaged_bytes(rng, bytes(archive))
    return bytes(archive)


def pickled(rng: Rng) -> bytes:
    """A pickled batch: whole, damaged, or of changed values."""
    content = batch(rng)
    odd: list[Any] = [None, [], {}, (), "a" * 5000, b"b" * 5000, 2**2000, -1, 1.5, [[]], content["data"], [content],
                      np.zeros((2, 3072), np.int8), np.zeros(5), np.zeros((3, 3072), np.uint8, "F"), {1: 2}]
    kind = rng.random()
    if kind < 0.4:
        content[rng.choice([*content, "other"])] = rng.choice(odd)
    whole = pickle.dumps(content, rng.choice([2, 3, 4, 5]))
    return whole if kind < 0.6 else damaged_bytes(rng, whole)


# One maker a data set: a directory of its name.

def make_idx(rng: Rng, directory: Path) -> None:
    for split in ("train", "t10k"):
        pictures = np.frombuffer(rng.randbytes(NUM_PICTURES * 784), np.uint8).reshape(-1, 28, 28)
        arrays = {f"{split}-images-idx3-ubyte": pictures,
                  f"{split}-labels-idx1-ubyte": np.array([rng.randrange(10) for _ in range(NUM_PICTURES)], np.uint8)}
        for name, array in arrays.items():
            content = bytearray(idx_bytes(array))
            if rng.random() < 0.4:  # dimensions that overflow, are too many, or exceed the file
                at = rng.choice([0, 2, 3, 4, 8, 12])
                size = 1 if at < 4 else 4
                content[at: at + size] = rng.choice([b"\xff" * size, bytes(size), rng.randbytes(size)])
            elif rng.random() < 0.3:
                content = bytearray(damaged_bytes(rng, bytes(content)))
            if rng.random() < 0.6:
                (directory / f"{name}.gz").write_bytes(packed(rng, bytes(content)))
            else:
                (directory / name).write_bytes(content)


def make_cifar(rng: Rng, directory: Path) -> None:
    form = rng.choice(cifar10.FORMS)
    names = [name for names in form.batches.values() for name in names]
    whole = rng.randrange(len(names))
    members = {}
    for number, name in enumerate(names):
        if form.archive == cifar10.PICKLED_ARCHIVE:
            members[name] = pickle.dumps(batch(rng), 4) if number < whole else pickled(rng)
        else:
            content = b"".join(bytes([rng.randrange(10)]) + rng.randbytes(3072) for _ in range(NUM_PICTURES))
            members[name] = content if rng.random() < 0.8 else damaged_bytes(rng, content)
    if rng.random() < 0.6:
        (directory / form.archive).write_bytes(packed(rng, tar(rng, members)))
    else:
        for name, content in members.items():
            (directory / name).write_bytes(content)


def make_cbtest(rng: Rng, directory: Path) -> None:
    kind = directory.name.rpartition("_")[2].upper()
    files = {f"cbtest_{kind}_{part}.txt": text(rng, lambda rng, count=2 if part == "train" else 1: b"".join(
        sample(rng) for _ in range(count))) for part in ("train", "valid_2000ex", "test_2500ex")}
    (directory / cbtest.ARCHIVE).write_bytes(packed(rng, tar(rng, files)))


def make_tatoeba(rng: Rng, directory: Path) -> None:
    (directory / tatoeba.ARCHIVE).write_bytes(zipped(rng, tatoeba.FILE, text(rng, pairs)))
    if rng.random() < 0.2:
        record = rng.choice([b"", rng.randbytes(64), b"0" * 64, b"\n" * 100_000])
        (directory / f"{tatoeba.ARCHIVE}.sha256").write_bytes(record)


def make_wikitext(rng: Rng, directory: Path) -> None:
    whole = {"train": b" \n = A <unk> = \n a b , a \n", "valid": b" \n b a new b b \n", "test": b" \n b a new b b \n"}
    for split, content in whole.items():
        if rng.random() < 0.9:
            name = rng.choice([f"{split}.txt", f"wiki.{split}.tokens"])
            (directory / name).write_bytes(text(rng, lambda rng, content=content: content))


MAKERS = {"mnist": make_idx, "cifar10": make_cifar, "cbtest_ne": make_cbtest, "tatoeba": make_tatoeba,
          "wikitext2": make_wikitext}


def make(rng: Rng, directory: Path) -> Path:
    name = rng.choice(sorted(MAKERS))
    place = directory / name
    place.mkdir()
    MAKERS[name](rng, place)
    return place


@pytest.mark.slow
@pytest.mark.parametrize("count", [10, pytest.param(3_000, marks=pytest.mark.slow)])
def test_files_of_data_sets(count: int) -> None:
    assert fuzz("data", make, read, count) == []
