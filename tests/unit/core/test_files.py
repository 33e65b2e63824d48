"""Atomic writes, names of files, locks, and errors of the file system in one line."""

import errno
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charact.core import files
from charact.core.errors import UserError


@given(st.text(max_size=120))
def test_a_name_fits_a_file_system_and_distinct_long_texts_stay_distinct(text: str) -> None:
    name = files.file_name(text)
    assert "/" not in name
    assert len(name.encode()) <= 200
    long, other = files.file_name(text + "é" * 200), files.file_name(text + "é" * 199 + "e")
    assert 198 <= len(long.encode()) <= 200
    assert long[:60] == other[:60] != ""
    assert long != other


def test_names_up_to_200_bytes_are_kept() -> None:
    assert files.file_name("a/b\n") == "a_b␊"
    assert files.file_name("x" * 200) == "x" * 200
    assert re.fullmatch("x{183}-[0-9a-f]{16}", files.file_name("x" * 201))


@pytest.mark.parametrize(("name", "expected"), [
    (".0123456789abcdef", True), (".0123456789abcde", False), (".0123456789abcdefa", False),
    ("0123456789abcdef", False), (".0123456789abcdeg", False)])
def test_hidden_names_of_unfinished_writes(name: str, expected: bool) -> None:
    assert files.is_begun(Path("folder", name)) is expected


@pytest.mark.parametrize("durable", [True, False])
def test_a_write_replaces_the_file_or_leaves_it_and_only_durable_ones_sync(
        durable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, synced = tmp_path / "f", []
    monkeypatch.setattr(files, "sync", synced.append)
    path.write_text("old")

    def stop_amid() -> None:
        with files.atomic_write(path, durable=durable) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop_amid()
    assert (path.read_text(), list(tmp_path.iterdir()), synced) == ("old", [path], [])
    with files.atomic_write(path, durable=durable) as temporary:
        assert files.is_begun(temporary)
        temporary.write_text("new")
    assert (path.read_text(), list(tmp_path.iterdir())) == ("new", [path])
    assert synced == ([temporary, tmp_path] if durable else [])


@pytest.mark.parametrize(("number", "message"), [
    (errno.ENOSPC, "no space left while writing f: free some, or choose another place"),
    (errno.EDQUOT, "no space left while writing f"), (errno.EFBIG, "no space left while writing f"),
    (errno.EACCES, "cannot write f (permission denied): choose another place")])
def test_errors_of_writing(number: int, message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}"), files.writing(Path("f")):
        raise OSError(number, os.strerror(number))
    with pytest.raises(UserError, match=r"^cannot write f \(odd\)"), files.writing(Path("f")):
        raise OSError("Odd")


@pytest.mark.parametrize(("number", "raised"), [(errno.EINVAL, False), (errno.ENOTSUP, False), (errno.EIO, True)])
def test_file_systems_without_fsync_are_no_error(
        number: int, raised: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    if raised:
        with pytest.raises(OSError, match=os.strerror(number)):
            files.sync(tmp_path)
    else:
        files.sync(tmp_path)


def test_places_that_cannot_be_written_to(tmp_path: Path) -> None:
    path, pipe = tmp_path / "f", tmp_path / "pipe"
    files.check_writable(path, force=False)
    assert list(tmp_path.iterdir()) == []
    files.write_text(path, "a\udce9", force=False)
    assert path.read_text() == r"a\xe9"
    files.check_writable(path, force=True)
    os.mkfifo(pipe)
    for place, message in ((path, "exists: --force overwrites it, --output names another file"),
                           (tmp_path, "is a directory: name a file"), (pipe, "is no regular file: name another")):
        with pytest.raises(UserError, match=f"^{place} {message}$"):
            files.check_writable(place, force=False, option="--output")
    with pytest.raises(UserError, match=r"exists: --force overwrites it$"):
        files.write_text(path, "b", force=False)


def test_a_lock_is_exclusive_until_its_release(tmp_path: Path) -> None:
    path, other = tmp_path / "lock", tmp_path / "other"
    first = files.lock(path)
    assert isinstance(first, int)
    assert files.lock(path) is None
    files.release(first, path)
    second = files.lock(path)
    assert isinstance(second, int)
    other.touch()
    files.release(second, other)  # the descriptor is of another file: it stays open
    assert files.lock(path) is None
    files.release(second, path)
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(second)
    files.release(second, path)


@pytest.mark.parametrize(("value", "expected"), [("/c", "/c/charact"), ("c", "/home/u/.cache/charact"),
                                                 ("", "/home/u/.cache/charact")])
def test_the_cache_is_an_absolute_xdg_folder_or_in_the_home(
        value: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    monkeypatch.setenv("HOME", "/home/u")
    assert files.user_cache() == Path(expected)
