"""The help of every command."""

from collections.abc import Iterator
from typing import Any

import pytest

from charact import cli
from charact.cli import build_command


def _commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield words
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, (*words, name))


def test_every_command_has_help_with_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    lines = list(_commands(build_command()))
    assert ("bricks", "run") in lines
    for words in lines:
        assert cli.run([*words, "--help"]) == 0
        usage, _, text = capsys.readouterr().out.partition("\n")
        assert usage.startswith(" ".join(["Usage: charact", *words, "[OPTIONS]"])), words
        assert not any(bracket in usage for bracket in ("[[", "]...]", "....")), words
        assert "--help" in text, words
