"""Words of a command that name places in the working directory, in a copy of it."""

from pathlib import Path

from charact.remedies.commands.try_ import _below


def test_absolute_places_are_those_of_the_copy() -> None:
    words = ["/home/me/code/train.py", "--data", "/home/me/data", "/home/me/code", "sub/a.py", "/home/me/code-2"]
    assert _below(words, Path("/home/me/code"), Path("/tmp/copy/code")) == [
        "/tmp/copy/code/train.py", "--data", "/home/me/data", "/tmp/copy/code", "sub/a.py", "/home/me/code-2"]
