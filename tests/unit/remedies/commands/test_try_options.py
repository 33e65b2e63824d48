"""How the words of `charact try --profile` are split: its own options, and those of `charact profile`."""

from collections.abc import Callable
from typing import Any

import pytest
import typer
from typer.main import get_command

from charact.remedies.commands import try_

Parsed = Callable[..., dict[str, Any]]


@pytest.fixture
def parsed() -> Parsed:
    """Return the values of the command's parameters for some words."""
    app = typer.Typer()
    app.command(cls=try_.CLASS, context_settings=try_.CONTEXT)(try_.command)
    command = get_command(app)
    return lambda *words: command.make_context("try", list(words)).params


@pytest.mark.parametrize(("words", "program"), [
    (["--model", "nets:Net", "--input-spec", "3xSxS"], ["--model", "nets:Net", "--input-spec", "3xSxS"]),
    (["--only", "threads", "--max-minutes=2", "--model=nets:Net", "-q"], ["--model=nets:Net", "-q"]),
    (["resnet18", "--mode", "train"], ["resnet18", "--mode", "train"]),
    (["--", "resnet18", "--only", "x"], ["resnet18", "--only", "x"]),
    ([], None),
])  # fmt: skip
def test_options_of_others_begin_the_words_of_the_workload(parsed: Parsed, words: list[str], program: Any) -> None:
    values = parsed("--profile", *words)
    assert values["profile"] is True
    assert (list(values["program"]) if values["program"] else None) == program
    assert values["only"] == ("threads" if "threads" in words else None)


def test_without_profile_they_are_unknown(parsed: Parsed) -> None:
    with pytest.raises(Exception, match="--model"):
        parsed("--model", "nets:Net", "--profile")
    assert parsed("--only", "fused", "-m", "job", "--profile")["program"] == ["--profile"]
