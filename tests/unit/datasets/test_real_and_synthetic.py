"""A contract: read from files in their true formats or made up, samples are alike to the workload that reads them."""

import gzip
import io
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils._pytree import tree_flatten
from torch.utils.data import DataLoader

from charact.datasets import cbtest, cifar10, idx, tatoeba, wikitext
from charact.datasets._common.registry import all_datasets
from charact.datasets._common.request import DataRequest
from charact.datasets._common.spec import PublishedFile, StoredDatasetSpec
from charact.workload.registry import find_workload

NUM_PICTURES = 6
READERS = {
    "image": ["mlp", "resnet18"], "language_model": ["rnn_lm", "transformer_lm"],
    "translation": ["seq2seq", "transformer"], "cloze": ["aoa_reader"],
}
"""Workloads that read each kind of data."""
STORED = {name: spec for name, spec in all_datasets().items() if isinstance(spec, StoredDatasetSpec)}
BATCH_SIZE = 3


def write_idx(folder: Path) -> None:
    def write(name: str, array: np.ndarray) -> None:
        header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
        (folder / name).write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes()))

    for prefix in ("train", "t10k"):
        write(f"{prefix}-images-idx3-ubyte.gz", np.full((NUM_PICTURES, 28, 28), 100))
        write(f"{prefix}-labels-idx1-ubyte.gz", np.arange(NUM_PICTURES))


def tar_bytes(files: dict[str, bytes]) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return archive.getvalue()


def write_binary_cifar(folder: Path) -> None:
    names = [name for split in cifar10.BATCHES.values() for name in split]
    records = b"".join(bytes([label]) + bytes(3072) for label in range(NUM_PICTURES))
    archive = tar_bytes({f"cifar-10-batches-bin/{name}": records for name in names})
    (folder / cifar10.ARCHIVE).write_bytes(archive)


def write_pickled_cifar(folder: Path) -> None:
    names = [name for split in cifar10.PICKLED_BATCHES.values() for name in split]
    batch = {"data": np.zeros((NUM_PICTURES, 3072), np.uint8), "labels": list(range(NUM_PICTURES))}
    for name in names:
        (folder / name).write_bytes(pickle.dumps(batch, 2))


def write_wikitext(folder: Path) -> None:
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text(" \n = A <unk> = \n" + " a b , c .\n" * 40)


def write_tatoeba(folder: Path) -> None:
    lines = "".join(f"I am {'x' * number}.\tJe suis {'y' * number} là.\n" for number in range(1, 61))
    with zipfile.ZipFile(folder / tatoeba.ARCHIVE, "w") as archive:
        archive.writestr("data/eng-fra.txt", lines)


def write_cbtest(folder: Path) -> None:
    lines = [f"{number} One day the Fox met a hen ." for number in range(1, 21)]
    sample = "\n".join([*lines, "21 The XXXXX ran .\tFox\t\tFox|hen|cow|dog|cat|pig|ram|owl|bee|ant", "", ""]).encode()
    files = {f"CBTest/data/cbtest_{kind}_{part}.txt": sample * NUM_PICTURES
             for kind in ("NE", "CN") for part in ("train", "valid_2000ex", "test_2500ex")}
    (folder / cbtest.ARCHIVE).write_bytes(tar_bytes(files))


WRITERS: list[tuple[str, Callable[[Path], None]]] = [
    ("mnist", write_idx), ("fashion_mnist", write_idx), ("kmnist", write_idx), ("cifar10", write_binary_cifar),
    ("cifar10", write_pickled_cifar), ("wikitext2", write_wikitext), ("tatoeba", write_tatoeba),
    ("cbtest_ne", write_cbtest), ("cbtest_cn", write_cbtest),
]


@pytest.fixture(autouse=True)
def as_small_as_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """Datasets as if they had been published with a few samples and without checksums."""
    for module in (idx, cifar10, wikitext, tatoeba, cbtest):
        specs = []
        for spec in module.DATASETS:
            files = tuple(PublishedFile(file.name, None, None, splits=file.splits) for file in spec.files)
            small = replace(spec, files=files)
            if module is idx:
                small = replace(small, num_pictures=dict.fromkeys(spec.splits, NUM_PICTURES))
            if module is cifar10:
                small = replace(small, num_pictures={"train": 5 * NUM_PICTURES, "test": NUM_PICTURES})
            specs.append(small)
        monkeypatch.setattr(module, "DATASETS", specs)
    for split in wikitext.NUM_LINES:
        monkeypatch.setitem(wikitext.NUM_LINES, split, 42)
        monkeypatch.setitem(wikitext.NUM_TOKENS, split, 1 + 5 + 40 * 6)
    for kind in cbtest.NUM_SAMPLES:
        monkeypatch.setitem(cbtest.NUM_SAMPLES, kind, dict.fromkeys(("train", "valid", "test"), NUM_PICTURES))


def first_batch(dataset: Any) -> Any:
    return next(iter(DataLoader(dataset, batch_size=BATCH_SIZE, collate_fn=getattr(dataset, "collate", None))))


def form(thing: Any) -> tuple[Any, list[Any]]:
    """Structure, and shape and type of each part; of a plain number its Python type."""
    leaves, structure = tree_flatten(thing)
    assert len(leaves) >= 2
    return structure, [(getattr(leaf, "shape", None), getattr(leaf, "dtype", type(leaf))) for leaf in leaves]


def test_every_stored_dataset_is_written_and_read_here() -> None:
    assert {name for name, _ in WRITERS} == STORED.keys()
    assert {spec.kind for spec in STORED.values()} == READERS.keys()


@pytest.mark.parametrize(("name", "write"), WRITERS, ids=[f"{name}-{write.__name__}" for name, write in WRITERS])
def test_real_and_made_up_samples_are_alike(tmp_path: Path, name: str, write: Callable[[Path], None]) -> None:
    write(tmp_path)
    for workload in READERS[STORED[name].kind]:
        for split in STORED[name].splits:
            asked = DataRequest(name, tmp_path, split, batch_size=BATCH_SIZE)
            real, made = (find_workload(workload).prepare().dataset(32, request)
                          for request in (asked, replace(asked, name="synthetic", directory=None)))
            assert form(real[0]) == form(made[0])
            assert form(first_batch(real)) == form(first_batch(made))


@pytest.mark.slow_variants
@pytest.mark.parametrize(("name", "write"), WRITERS, ids=[f"{name}-{write.__name__}" for name, write in WRITERS])
def test_a_workload_learns_from_both(tmp_path: Path, name: str, write: Callable[[Path], None]) -> None:
    write(tmp_path)
    workload = find_workload(READERS[STORED[name].kind][0]).prepare()
    for asked in (DataRequest(name, tmp_path, "test", batch_size=BATCH_SIZE),
                  DataRequest(split="test", batch_size=BATCH_SIZE)):
        dataset = workload.dataset(32, asked)
        batch = first_batch(dataset)
        model = workload.model(dataset)
        loss = workload.loss(workload.forward(model, batch), batch)
        loss.backward()
        assert loss.isfinite()
