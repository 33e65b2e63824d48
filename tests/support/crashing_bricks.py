"""Bricks that end the process they run in, for processes that are allowed to run them."""

from pathlib import Path

import pytest

from support.hand_made_bricks import a_brick, a_layer, an_input, value

CRASHING = a_brick(
    [an_input(4), an_input(1, dtype="int64", sample={"low": 2**40, "high": 2**40})],
    [a_layer("segment_reduce.default", [value(0), "sum"], 2, lengths=value(1), unsafe=True)], [2])
"""Reads far beyond its input: a segmentation fault."""


def allow_crashes(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """Have processes that are started from now on take `segment_reduce` for an operator that bricks may call."""
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(
        "import charact.bricks.aten as operators\noperators.OPERATORS |= {'segment_reduce'}\n")
    monkeypatch.syspath_prepend(directory)
