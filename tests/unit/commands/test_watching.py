"""Which of several runs `charact watch` shows."""

import os
from pathlib import Path

import pytest

from charact.commands._shared.watching import running_one
from charact.core.errors import UserError
from charact.record.in_progress import LOCK


def run_of(directory: Path, process: int) -> Path:
    directory.mkdir()
    (directory / LOCK).write_text(str(process))
    return directory


GONE = 999999999  # no process has such a number


def test_the_one_that_goes_on_is_found_among_killed_ones(tmp_path: Path) -> None:
    runs = [run_of(tmp_path / "a", GONE), run_of(tmp_path / "b", os.getpid()), run_of(tmp_path / "c", GONE)]
    assert running_one(runs) == tmp_path / "b"
    assert running_one(runs[:1]) == tmp_path / "a"  # watching tells what became of it


def test_several_or_none_are_refused(tmp_path: Path) -> None:
    runs = [run_of(tmp_path / "a", os.getpid()), run_of(tmp_path / "b", os.getpid())]
    with pytest.raises(UserError, match=f"give one of {tmp_path}/a, {tmp_path}/b"):
        running_one(runs)
    killed = [run_of(tmp_path / "c", GONE), run_of(tmp_path / "d", GONE)]
    with pytest.raises(UserError, match="none of these runs is running: use charact recover"):
        running_one(killed)
