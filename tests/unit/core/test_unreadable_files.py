"""What may not be read is said to be unreadable, and never to be corrupt or absent."""

import contextlib
import errno
import gzip
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.hand_made_bricks import a_suite, product

from charact import cli
from charact.bricks.suite.composition import load_compositions, read_composition
from charact.bricks.suite.suite import INDEX, load_suite
from charact.core.errors import UserError
from charact.core.files import reading
from charact.datasets._common.spec import PublishedFile, inspect
from charact.measure.training.checkpoint import read_checkpoint
from charact.measure.training.weight_files import read_outlines
from charact.traces.reader import read_trace, trace_files

NOBODY = 65534


@contextlib.contextmanager
def forbidden(path: Path) -> Iterator[None]:
    """A path that this process may not open; root gives its rights away meanwhile."""
    mode, user = path.stat().st_mode, os.geteuid()
    path.chmod(0)
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)
        path.chmod(mode)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that anybody could read."""
    for each in (tmp_path, *tmp_path.parents[:3]):
        if each.stat().st_uid == os.geteuid():
            each.chmod(0o755)
    return tmp_path


def _suite(folder: Path) -> Path:
    return a_suite(folder / "suite", product()).path / INDEX


def _composition(folder: Path) -> Path:
    return next(a_suite(folder / "suite", product()).private.glob("*.json"))


def _file(folder: Path) -> Path:
    path = folder / "file"
    path.write_bytes(gzip.compress(b"{}"))
    return path


def _weights(folder: Path) -> Path:
    torch.save({}, folder / "w.pt")
    return folder / "w.pt"


def _directory(folder: Path) -> Path:
    (folder / "d").mkdir()
    return folder / "d"


READERS: dict[str, tuple[Callable[[Path], Path], Callable[[Path], Any]]] = {
    "trace": (_file, read_trace), "traces": (_directory, lambda path: trace_files([path])),
    "inside": (_directory, lambda path: trace_files([path / "t.json"])),
    "data": (_file, lambda path: inspect(path, PublishedFile(path.name, None, None))),
    "suite": (_suite, lambda path: load_suite(path.parent)), "composition": (_composition, read_composition),
    "compositions": (_composition, lambda path: load_compositions(path.parent)),
    "weights": (_weights, lambda path: read_outlines(path, torch.nn.Linear(1, 1))),
    "checkpoint": (_weights, lambda path: read_checkpoint(path, None, [])),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("kind", READERS)
def test_what_may_not_be_read_is_not_called_corrupt(kind: str, folder: Path) -> None:
    make, read = READERS[kind]
    path = make(folder)
    with forbidden(path), pytest.raises(UserError, match=r"permission denied|not readable|no permission") as refused:
        read(path)
    assert re.search("corrupt|damaged|not a composition|no such|anew", str(refused.value)) is None


def test_what_no_reader_expected_is_one_line_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "d").mkdir()
    with forbidden(folder / "d"):
        assert cli.run(["tensorboard", str(folder / "d" / "runs")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "permission denied" in said


@pytest.mark.parametrize(("number", "said"), [
    (errno.ENOENT, "cannot read f (no such file or directory): name another"),
    (errno.EACCES, "cannot read f (permission denied): make it readable for your user, or name another"),
    (errno.EIO, "cannot read f (input/output error): name another"),
])
def test_each_refusal_has_its_remedy(number: int, said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)), reading("f"):
        raise OSError(number, os.strerror(number))
    with pytest.raises(UserError, match=r"\): do that$"), reading("f", "do that"):
        raise OSError(number, os.strerror(number))


def test_an_error_about_the_content_stays_the_reader_s() -> None:
    with pytest.raises(gzip.BadGzipFile), reading("f"):
        raise gzip.BadGzipFile("not gzipped")
