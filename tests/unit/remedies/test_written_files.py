"""Files that trials wrote, and copies in which they write."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from charact.core.errors import UserError
from charact.remedies import written_files
from charact.remedies.written_files import changed, scratch_copy, snapshot


def write(path: Path, text: str = "x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name in ("kept.txt", "longer.txt", "same_size.txt", "gone.txt", "data/part.bin", "runs/old/run.json"):
        write(tmp_path / "project" / name, name)
    return tmp_path / "project"


def test_new_changed_and_removed_files_are_found(directory: Path) -> None:
    before = snapshot(directory, directory / "runs")
    assert changed(before, snapshot(directory, directory / "runs")) == []
    write(directory / "longer.txt", "longer than before")
    write(directory / "same_size.txt", "SAME_SIZE.TXT")
    os.utime(directory / "same_size.txt", ns=(0, before["same_size.txt"][1] + 1))
    (directory / "gone.txt").unlink()
    write(directory / "data" / "deep" / "new.pt")
    (directory / "link").symlink_to("nowhere")
    assert changed(before, snapshot(directory, directory / "runs")) == sorted([
        "longer.txt", "same_size.txt", "gone.txt", os.path.join("data", "deep", "new.pt"), "link"])


def test_own_files_and_those_of_tools_are_left_out(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(directory)
    before = snapshot(directory, Path("runs"))
    for name in (".git/index", "pkg/__pycache__/a.pyc", ".venv/lib/x.py", "node_modules/y.js", "runs/new/run.json"):
        write(directory / name)
    assert changed(before, snapshot(directory, Path("runs"))) == []
    write(directory / "pkg" / "runs" / "model.pt")  # another directory of the same name
    assert changed(before, snapshot(directory, Path("runs"))) == [os.path.join("pkg", "runs", "model.pt")]


def test_a_snapshot_has_sizes_and_times_and_a_limit(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = (directory / "kept.txt").stat()
    assert snapshot(directory, directory / "runs")["kept.txt"] == (len("kept.txt"), facts.st_mtime_ns)
    assert len(snapshot(directory, directory / "runs")) == 5
    monkeypatch.setattr(written_files, "_MOST_FILES", 3)
    assert len(snapshot(directory, directory / "runs")) == 3


def test_what_the_command_prints_to_and_files_that_vanish_are_left_out(directory: Path, monkeypatch: pytest.MonkeyPatch
                                                                     ) -> None:
    stat = os.stat

    def vanished(path: Any, **options: Any) -> os.stat_result:
        if str(path).endswith("gone.txt"):
            raise FileNotFoundError(path)
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", vanished)
    monkeypatch.setattr(os, "fstat", lambda descriptor: stat(directory / "kept.txt"))
    assert set(snapshot(directory, directory / "runs")) == {
        "longer.txt", "same_size.txt", os.path.join("data", "part.bin")}


def test_a_copy_is_independent_and_is_removed(directory: Path) -> None:
    os.utime(directory / "kept.txt", (1, 1))
    (directory / "link").symlink_to("kept.txt")
    before = snapshot(directory, directory / "runs")
    with scratch_copy(directory) as copied:
        assert copied.name == directory.name
        assert snapshot(copied, copied / "runs") == before
        assert (copied / "link").is_symlink()
        write(copied / "kept.txt", "changed")
        write(copied / "new.txt")
        (copied / "gone.txt").unlink()
        assert snapshot(directory, directory / "runs") == before
    assert not copied.parent.exists()
    assert snapshot(directory, directory / "runs") == before


def test_a_copy_is_removed_after_an_error(directory: Path) -> None:
    with pytest.raises(KeyError), scratch_copy(directory) as copied:
        raise KeyError
    assert not copied.parent.exists()


def test_a_directory_that_cannot_be_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(written_files.tempfile, "tempdir", str(place))
    with pytest.raises(UserError, match="TMPDIR"), scratch_copy(tmp_path / "nowhere"):
        raise AssertionError("an empty copy")
    assert list(place.iterdir()) == []


def test_copies_of_processes_that_were_killed_are_removed(directory: Path, tmp_path: Path,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "temporary"
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left, own, other = (place / f"charact-scratch-{each}-x" for each in (ended.pid, os.getpid(), "of"))
    for each in (left, own, other):
        write(each / "code" / "train.py")
    monkeypatch.setattr(written_files.tempfile, "tempdir", str(place))
    with scratch_copy(directory) as copied:
        assert set(place.iterdir()) == {own, other, copied.parent}
