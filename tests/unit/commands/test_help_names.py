"""Names of values in the help of every command."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from charact import cli
from charact.cli import build_command


def _commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield words
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, (*words, name))


def test_no_help_shows_types_of_python(capsys: pytest.CaptureFixture[str]) -> None:
    lines = list(_commands(build_command()))
    assert ("bricks", "run") in lines
    for words in lines:
        assert cli.run([*words, "--help"]) == 0
        shown = capsys.readouterr().out
        assert not re.findall(r"<(?:int|str|float|path|list|bool)\b[^>]*>|<[a-z-]+\|", shown), words
        assert "x>=" not in shown, words
        assert "<=x" not in shown, words
        assert not re.search(r"\[\[|\]\.\.\.\]|\.\.\.\.", shown.partition("\n")[0]), words


@pytest.mark.parametrize(("command", "usage"), [
    ("profile", "[WORKLOAD...]"), ("report", "RUN..."), ("show", "[RUN]"), ("list", "[TOPIC]"), ("infer", "WORKLOAD"),
    ("compare", "[RUNS RUNS...]"), ("run", "SCRIPT [ARGS]..."),
])
def test_usage_shows_what_may_be_left_out(capsys: pytest.CaptureFixture[str], command: str, usage: str) -> None:
    assert cli.run([command, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: charact {command} [OPTIONS] {usage}\n")


@pytest.mark.parametrize(("command", "text"), [
    ("profile", "[default: 0; 0 to 2^63 - 1]"), ("profile", "[1 to 4,096]"), ("profile", "[default: 100; at least 1]"),
    ("train", "[1 to 1,000,000]"),
])
def test_ranges_are_plain_words(capsys: pytest.CaptureFixture[str], command: str, text: str) -> None:
    assert cli.run([command, "--help"]) == 0
    assert text in " ".join(capsys.readouterr().out.split())
