"""`charact data` as a user runs it, against a server on loopback; and made-up data by option."""

import hashlib
import io
import os
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.file_server import FileServer, serving
from support.programs import only_record

from charact.datasets import _fetch
from charact.datasets._common.registry import find_dataset
from charact.datasets._common.spec import PublishedFile

Here = Callable[..., Any]
LINES = "".join(f"I am {'x' * number}.\tJe suis {'y' * number}.\n" for number in range(1, 61))
MNIST = [f"{part}-ubyte.gz" for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3",
                                         "t10k-labels-idx1")]


def archive() -> bytes:
    """The tutorial's archive, as long as a few packets."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        file.writestr("data/eng-fra.txt", LINES)
        file.writestr("data/names/Irish.txt", bytes(400_000))
    return content.getvalue()


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serving({"data.zip": archive()}) as server:
        yield server


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "charact", *arguments]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.lower() in ("http_proxy", "all_proxy")]:
        monkeypatch.delenv(name)


def charact(*arguments: str, cwd: Path, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), cwd=cwd, capture_output=True, text=True, timeout=120, check=False,
                          **options)  # type: ignore[call-overload,no-any-return]


def files(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def test_fetch_then_check_then_fetch_again(tmp_path: Path, server: FileServer, here: Here) -> None:
    source = ("--source", server.address)
    done = here("data", "fetch", "tatoeba", *source, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    first, last = done.stdout.splitlines()
    assert first.startswith("data/tatoeba/data.zip: downloaded, ")
    assert last == "Use it with --data tatoeba --data-dir data"
    assert files(tmp_path) == ["data/tatoeba/data.zip", "data/tatoeba/data.zip.sha256"]

    done = here("data", "check", "tatoeba", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split(maxsplit=1) for line in done.stdout.splitlines() if line]
    assert ["data.zip", "unchanged since it was fetched, by its recorded checksum"] in rows
    assert ["train", "60 pairs in all splits and of all lengths"] in rows

    done = here("data", "fetch", "tatoeba", *source, cwd=tmp_path)
    assert done.stdout.splitlines()[0] == "data/tatoeba/data.zip: already correct"
    assert server.paths == ["/files/data.zip"]


def test_a_file_of_unknown_size_is_limited_and_the_user_raises_the_limit(tmp_path: Path, server: FileServer,
                                                                         here: Here) -> None:
    fetch = ("data", "fetch", "tatoeba", "--source", server.address, "--max-bytes")
    done = here(*fetch, "100K", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout.startswith(f"data.zip: n/a ({server.address}data.zip has 0.4 MiB, the limit is 0.1 MiB: ")
    assert files(tmp_path) == []
    here(*fetch, "1M", cwd=tmp_path, status=0)


def test_what_can_be_had_is_fetched_and_the_rest_is_named(tmp_path: Path, server: FileServer, here: Here,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    contents = {name: name.encode() for name in MNIST}
    published = tuple(PublishedFile(name, len(content), md5(content), splits=("train",))
                      for name, content in contents.items())
    spec = replace(find_dataset("mnist"), files=published)
    monkeypatch.setattr(_fetch, "find_dataset", lambda name: spec)
    wrong, right, absent, also_right = MNIST
    server.files = {wrong: contents[wrong][::-1], right: contents[right], also_right: contents[also_right]}

    arguments = ("data", "fetch", "mnist", "--to", "elsewhere", "--source", server.address)
    done = here(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert files(tmp_path) == sorted(f"elsewhere/mnist/{name}" for name in (right, also_right))
    assert done.stdout.splitlines() == [
        f"{wrong}: n/a ({server.address}{wrong} is not the published file and was deleted: {wrong} is "
        f"truncated or foreign (MD5 {md5(contents[wrong][::-1])}, published {md5(contents[wrong])}))",
        f"elsewhere/mnist/{right}: downloaded, {len(right)}.0 B (before: absent)",
        f"{absent}: n/a ({server.address}{absent} cannot be fetched (404 Not Found): try later, or name a mirror with "
        "--source)",
        f"elsewhere/mnist/{also_right}: downloaded, {len(also_right)}.0 B (before: absent)",
    ]
    assert done.stderr == (f"error: mnist lacks {wrong}, {absent}, for the reasons above: fix them, then run the same "
                           "command again\n")

    server.files = contents
    server.paths.clear()
    done = here(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert server.paths == [f"/files/{wrong}", f"/files/{absent}"]
    assert files(tmp_path) == sorted(f"elsewhere/mnist/{name}" for name in MNIST)


def test_what_a_killed_fetch_left_is_removed_by_a_later_one(tmp_path: Path, server: FileServer, here: Here) -> None:
    arguments = ("data", "fetch", "tatoeba", "--source", server.address)
    folder = tmp_path / "data" / "tatoeba"
    server.hold = threading.Event()
    with subprocess.Popen(command(*arguments), cwd=tmp_path) as killed:
        begun = time.monotonic()
        while not any(folder.glob(".*")) and time.monotonic() - begun < 60:
            time.sleep(0.01)
        killed.kill()
    (left,) = folder.iterdir()
    os.utime(left, (0, 0))
    server.hold.set()
    here(*arguments, cwd=tmp_path, status=0)
    assert files(tmp_path) == ["data/tatoeba/data.zip", "data/tatoeba/data.zip.sha256"]


@pytest.mark.parametrize(("arguments", "said"), [
    (["fetch"], "missing argument"),
    (["fetch", "synthetic"], "synthetic data are generated: they have no files"),
    (["fetch", "mnist", "--max-bytes", "many"], "--max-bytes: 'many' is not a size"),
])
def test_mistakes_are_one_line(arguments: list[str], said: str, refused: Here) -> None:
    refused("data", *arguments, said=said)


@pytest.mark.slow
def test_a_profile_is_of_the_synthetic_data_asked_for(tmp_path: Path, here: Here) -> None:
    here("profile", "mlp", "--batch-sizes", "2", "--synthetic", "classes=77", "--mode", "infer", "--max-iterations",
         "6", "--max-seconds", "1", "--quiet", cwd=tmp_path, status=0)
    run = only_record(tmp_path)
    assert run.manifest["options"]["synthetic"] == "classes=77"
    # 3 × 28 × 28 inputs, two layers of 512, 77 outputs, and their biases.
    assert run.entries[0].num_parameters == (3 * 28**2 + 1) * 512 + 513 * 512 + 513 * 77


@pytest.mark.parametrize(("arguments", "said"), [
    (["zipf=2"], "--synthetic zipf does not apply to image data, only classes: leave it out\n"),
    (["classes=3", "--data", "mnist"], "--synthetic is for synthetic data, not for mnist: leave one of them out\n"),
])
def test_synthetic_data_that_cannot_be_are_refused(arguments: list[str], said: str, refused: Here) -> None:
    refused("profile", "mlp", "--synthetic", *arguments, said=said)
