"""The files of a dataset: fetched from a server on loopback, verified by checksum or by reading, and checked."""

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.file_server import FileServer, serving

from charact.core.bounded_reading import limited_to
from charact.core.errors import UserError
from charact.datasets._common.registry import all_datasets, find_dataset
from charact.datasets._common.spec import PublishedFile, StoredDatasetSpec
from charact.datasets._fetch import fetch_file, file_state, prove, split_samples, stored_dataset
from charact.datasets.wikitext import NUM_LINES, NUM_TOKENS

TRAIN, VALID = b" \n a b , a \n", b" \n b a new \n"
STORED = [spec for spec in all_datasets().values() if isinstance(spec, StoredDatasetSpec)]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serving({"train.txt": TRAIN, "valid.txt": VALID}) as server:
        yield server


@pytest.fixture
def spec(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> StoredDatasetSpec:
    """WikiText-2 as if its train and valid splits had been published so small; the checksum of one is known."""
    monkeypatch.setitem(NUM_LINES, "train", 2)
    monkeypatch.setitem(NUM_TOKENS, "train", 6)
    monkeypatch.setitem(NUM_LINES, "valid", 2)
    monkeypatch.setitem(NUM_TOKENS, "valid", 5)
    files = (PublishedFile("train.txt", None, None, splits=("train",)),
             PublishedFile("valid.txt", len(VALID), hashlib.md5(VALID).hexdigest(), splits=("valid",)))
    return replace(stored_dataset("wikitext2", server.address), files=files, splits=("train", "valid"))


def fetch(spec: StoredDatasetSpec, name: str, directory: Path) -> tuple[Path, str | None]:
    return fetch_file(spec, spec.published(name), directory, lambda done, total: None)


def test_what_is_fetched_can_be_read(spec: StoredDatasetSpec, server: FileServer, tmp_path: Path) -> None:
    for name in ("train.txt", "valid.txt"):
        assert fetch(spec, name, tmp_path) == (tmp_path / "wikitext2" / name, "absent")
    tokens, vocabulary = spec.load(tmp_path, "valid")
    assert vocabulary.decode(tokens) == ["<eos>", "b", "a", "<unk>", "<eos>"]
    assert [split_samples(spec, tmp_path, split) for split in spec.splits] == ["6 words", "5 words"]
    assert server.paths == ["/files/train.txt", "/files/valid.txt"]


def test_what_is_there_and_right_is_not_fetched_wherever_it_lies(spec: StoredDatasetSpec, server: FileServer,
                                                                 tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_bytes(TRAIN)
    (tmp_path / "wikitext-2").mkdir()
    (tmp_path / "wikitext-2" / "valid.txt").write_bytes(VALID)
    assert fetch(spec, "train.txt", tmp_path) == (tmp_path / "train.txt", None)
    assert fetch(spec, "valid.txt", tmp_path) == (tmp_path / "wikitext-2" / "valid.txt", None)
    assert server.paths == []


@pytest.mark.parametrize(("name", "was"), [
    ("train.txt", "wrong: train.txt has 1 lines and 2 words for train, 2 and 6 were published"),
    ("valid.txt", "wrong: valid.txt is truncated (5 bytes, published 12)"),
])
def test_what_is_there_and_wrong_is_replaced_where_it_lies(spec: StoredDatasetSpec, tmp_path: Path, name: str,
                                                           was: str) -> None:
    (tmp_path / name).write_bytes(b"wrong")
    place, before = fetch(spec, name, tmp_path)
    assert place == tmp_path / name
    assert before is not None
    assert before.startswith(was)
    assert place.read_bytes() == (TRAIN if name == "train.txt" else VALID)


@pytest.mark.parametrize(("name", "said"), [
    ("train.txt", r"train.txt has 1 lines and 3 words for train, 2 and 6 were published"),
    ("valid.txt", r"valid.txt is truncated or foreign \(MD5 [0-9a-f]{32}, published [0-9a-f]{32}\)"),
])
def test_what_was_sent_and_is_wrong_is_deleted_and_told(spec: StoredDatasetSpec, server: FileServer, tmp_path: Path,
                                                        name: str, said: str) -> None:
    server.files[name] = b"<html> portal" if name == "train.txt" else VALID[::-1]
    with pytest.raises(UserError, match=rf"^http://127.*/{name} is not the published file and was deleted: "
                                        rf"{said}"):
        fetch(spec, name, tmp_path)
    assert list((tmp_path / "wikitext2").iterdir()) == []


def test_a_proof_names_no_temporary_place(spec: StoredDatasetSpec, tmp_path: Path) -> None:
    part = tmp_path / "train.txt.part"
    part.write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"^train.txt is not UTF-8 text"):
        prove(spec, spec.published("train.txt"), part)
    part.write_bytes(TRAIN)
    prove(spec, spec.published("train.txt"), part)


def test_the_state_of_a_file_says_how_it_compares(spec: StoredDatasetSpec, tmp_path: Path) -> None:
    def state(name: str) -> str:
        return file_state(spec, spec.published(name), tmp_path)

    assert state("valid.txt") == "absent"
    (tmp_path / "valid.txt").write_bytes(VALID)
    (tmp_path / "train.txt").write_bytes(b"anything")
    assert (state("valid.txt"), state("train.txt")) == ("correct, by its checksum", "present")
    (tmp_path / "valid.txt").write_bytes(VALID + b"x")
    assert state("valid.txt") == "wrong: foreign (13 bytes, published 12)"
    sized = replace(spec, files=(PublishedFile("train.txt", 8, None),))
    assert file_state(sized, sized.files[0], tmp_path) == "present, with the correct size"


def test_what_was_fetched_is_recorded_and_compared_where_no_checksum_was_published(
        spec: StoredDatasetSpec, server: FileServer, tmp_path: Path) -> None:
    place, _ = fetch(spec, "train.txt", tmp_path)
    record = place.with_name("train.txt.sha256")
    assert record.read_text() == f"{hashlib.sha256(TRAIN).hexdigest()}  train.txt\n"
    fetch(spec, "valid.txt", tmp_path)
    assert not place.with_name("valid.txt.sha256").exists()  # its checksum was published

    assert file_state(spec, spec.published("train.txt"), tmp_path) == (
        "unchanged since it was fetched, by its recorded checksum")
    place.write_bytes(TRAIN.replace(b"b", b"c"))  # as many words, so that reading alone finds nothing
    with pytest.raises(UserError, match=rf"train.txt is changed after it was fetched .* remove {record}: fetch it "):
        spec.load(tmp_path, "train")
    assert file_state(spec, spec.published("train.txt"), tmp_path).startswith("wrong: changed after it was fetched")
    _, before = fetch(spec, "train.txt", tmp_path)
    assert before is not None
    assert before.startswith("wrong: train.txt is changed after it was fetched")
    spec.load(tmp_path, "train")

    record.write_bytes(b"\xff" * 2**20)
    with pytest.raises(UserError, match=rf"because its recorded SHA-256 in {record} is damaged"):
        spec.load(tmp_path, "train")
    record.unlink()
    spec.load(tmp_path, "train")


def test_a_file_beyond_its_limit_is_not_read(spec: StoredDatasetSpec, tmp_path: Path) -> None:
    file = PublishedFile("train.txt", None, None, splits=("train",), most_bytes=len(TRAIN) - 1)
    limited = replace(spec, files=(file,))
    (tmp_path / "train.txt").write_bytes(TRAIN)
    with pytest.raises(UserError, match=r"train.txt has more than 0.0 MiB: if you trust it, raise the limit with "):
        limited.load(tmp_path, "train")
    with limited_to(len(TRAIN)):
        limited.load(tmp_path, "train")


def test_a_file_of_another_size_is_not_read(spec: StoredDatasetSpec, tmp_path: Path) -> None:
    path = tmp_path / "valid.txt"
    path.touch()
    os.truncate(path, 2**40)  # takes no space
    assert file_state(spec, spec.published("valid.txt"), tmp_path) == (
        f"wrong: foreign ({2**40:,} bytes, published {len(VALID)})")


def test_no_two_datasets_put_different_files_in_one_place() -> None:
    places: dict[tuple[str, str], tuple[str, str | None]] = {}
    for spec in STORED:
        for file in spec.files:
            came = (spec.source, file.checksum)
            assert places.setdefault((spec.home, file.name), came) == came


@pytest.mark.parametrize("source", ["http://mirror.org/a", "http://mirror.org/a/"])
def test_a_mirror_takes_the_place_of_the_source(source: str) -> None:
    assert stored_dataset("mnist", source).source == "http://mirror.org/a/"
    with pytest.raises(UserError, match="is not the address of a web server"):
        stored_dataset("mnist", "mirror.org")


@pytest.mark.parametrize("spec", STORED, ids=lambda spec: spec.name)
def test_every_dataset_names_its_files_with_what_was_published_of_them(spec: StoredDatasetSpec, tmp_path: Path) -> None:
    fetched = [file for file in spec.files if file.splits]
    assert {split for file in fetched for split in file.splits} == set(spec.splits)
    assert len({file.name for file in spec.files}) == len(spec.files)
    assert stored_dataset(spec.name) is find_dataset(spec.name)
    assert spec.description
    # CBTest's publisher has no https; no checksum of Tatoeba's archive was published, which grows.
    assert re.fullmatch("http://.*/" if spec.name.startswith("cbtest") else "https://.*/", spec.source)
    for file in fetched if spec.name != "tatoeba" else []:
        assert file.num_bytes
        assert re.fullmatch("[0-9a-f]{64}", str(file.checksum))
    assert all(re.fullmatch("[0-9a-f]{32}|[0-9a-f]{64}", file.checksum) for file in spec.files if file.checksum)
    if spec.kind == "image":  # of text, counts of lines and words were published instead
        assert all(file.checksum or file.num_bytes for file in spec.files)
    for split in spec.splits:
        with pytest.raises(UserError, match=rf"^{spec.name} needs .*{tmp_path}.*: `charact data fetch {spec.name}` "
                                            rf"downloads {spec.source}") as missing:
            spec.load(tmp_path, split)
        assert str(missing.value).endswith(tuple(file.name for file in fetched if split in file.splits))


@pytest.mark.parametrize(("name", "reason"), [
    ("synthetic", "synthetic data are generated: they have no files"),
    ("mnits", "unknown dataset 'mnits': did you mean mnist"),
])
def test_what_has_no_files_is_refused(name: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        stored_dataset(name)
